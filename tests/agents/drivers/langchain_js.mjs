import { createAgent, tool } from "langchain";
import { z } from "zod";

const tools = [
  tool(getWeather, { name: "get_weather", description: "The weather now.", schema: z.object({ city: z.string() }) }),
  tool(getTime, { name: "get_time", description: "The time now.", schema: z.object({ zone: z.string() }) }),
];

await takeAll(async (turn, streamed, task) => {
  const messages = [{ role: "user", content: task }];
  const agent = createAgent({ model, tools: turn === "tools" ? tools : [] });
  if (!streamed) return [(await agent.invoke({ messages })).messages.at(-1).text];
  let last = "";
  for await (const [chunk] of await agent.stream({ messages }, { streamMode: "messages" })) {
    last = chunk.getType() === "ai" ? last + chunk.text : "";
  }
  return [last];
});
