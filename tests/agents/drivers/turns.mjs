// The turns that a driver takes, and the report of what came back. A driver is a block of docs/agents.md, followed by a
// file of this folder. TURNS lists turn, mode and task of each turn.
const calls = [];

export function getWeather({ city }) {
  calls.push(["get_weather", { city }]);
  return `Sunny in ${city}.`;
}

export function getTime({ zone }) {
  calls.push(["get_time", { zone }]);
  return "12:00";
}

// take: gets the name of a turn, whether to stream, and the task. Returns the final text, and the reasoning if the
// program shows it.
export async function takeAll(take) {
  for (const [turn, mode, task] of JSON.parse(process.env.TURNS)) {
    calls.length = 0;
    let result;
    try {
      const [text, reasoning] = await take(turn, mode === "streamed", task);
      result = { text, reasoning: reasoning ?? null, calls };
    } catch (error) {
      result = { error: String(error.stack ?? error) };
    }
    console.log("\nREPORT " + JSON.stringify({ turn, mode, ...result }));
  }
}
