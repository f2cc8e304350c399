// For workerd, an edge runtime: `workerd test` calls this with what worker.capnp binds.
import { tour, type Place } from "./tour.js";

export default {
  async test(_: unknown, place: Place): Promise<void> {
    console.log(JSON.stringify(await tour(place)));
  },
};
