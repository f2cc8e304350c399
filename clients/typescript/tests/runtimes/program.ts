// For Node, Deno and Bun: key and addresses are in the environment.
import { tour } from "./tour.js";

const { BURSAR_API_KEY, BURSAR_BASE_URL, SHOP_URL } = process.env;
const place = { apiKey: BURSAR_API_KEY!, baseUrl: BURSAR_BASE_URL!, shop: SHOP_URL! };
console.log(JSON.stringify(await tour(place)));
