// What the model of these examples does, so that they run without one: it reads what the tools
// answered, and decides. Gives the next call, or the last words.
const weather = process.env.SHOP_URL ?? "http://127.0.0.1:8402/weather";
const forecast = weather.replace("/weather", "/forecast");

export function decide(answers) {
  const last = answers.at(-1);
  if (last === undefined) return { name: "get_budget", args: {} };
  if (answers.length === 1) return { name: "buy", args: { url: forecast } };
  if (last.status === "rejected") {
    // Too dear for today: something that fits what is left.
    const maxAmount = last.decision.maxAmountNow;
    return { name: "buy", args: { url: weather, maxAmount } };
  }
  const refused = answers[1].rejectCode;
  return `The forecast was refused (${refused}); ${last.amount} USDC: ${last.response.body}`;
}
