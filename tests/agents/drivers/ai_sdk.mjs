import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const tools = {
  get_weather: tool({ description: "The weather now.", inputSchema: z.object({ city: z.string() }), execute: getWeather }),
  get_time: tool({ description: "The time now.", inputSchema: z.object({ zone: z.string() }), execute: getTime }),
  label: tool({
    description: "Label a page.",
    inputSchema: z.object({ page: z.url(), labels: z.record(z.string(), z.string()) }),
    execute: () => "done",
  }),
};
const request = { model, prompt: TASK, ...(TURN === "tools" && { tools, stopWhen: stepCountIs(5) }) };
const answer = STREAMED ? streamText({ ...request, onError: ({ error }) => { throw error; } }) : await generateText(request);
report(await answer.text, (await answer.reasoningText) ?? null);
