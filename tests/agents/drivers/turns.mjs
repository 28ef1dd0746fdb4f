// The turn that a driver takes, and the report of what came back. A driver is a block of docs/agents.md, followed by a
// file of this folder. The test sets the environment variables.
export const { TASK, TURN } = process.env;
export const STREAMED = process.env.MODE === "streamed";
const calls = [];

export function getWeather({ city }) {
  calls.push(["get_weather", { city }]);
  return `Sunny in ${city}.`;
}

export function getTime({ zone }) {
  calls.push(["get_time", { zone }]);
  return "12:00";
}

export function report(text, reasoning = null) {
  console.log("REPORT " + JSON.stringify({ text, reasoning, calls }));
}
