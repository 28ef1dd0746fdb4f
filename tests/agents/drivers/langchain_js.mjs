import { createAgent, tool } from "langchain";
import { z } from "zod";

const tools = [
  tool(getWeather, { name: "get_weather", description: "The weather now.", schema: z.object({ city: z.string() }) }),
  tool(getTime, { name: "get_time", description: "The time now.", schema: z.object({ zone: z.string() }) }),
];
const messages = [{ role: "user", content: TASK }];
const agent = createAgent({ model, tools: TURN === "tools" ? tools : [] });
let last = "";
if (STREAMED) {
  for await (const [chunk, { langgraph_step }] of await agent.stream({ messages }, { streamMode: "messages" })) {
    if (chunk.getType() !== "ai") last = "";
    else last += chunk.text;
  }
} else {
  last = (await agent.invoke({ messages })).messages.at(-1).text;
}
report(last);
