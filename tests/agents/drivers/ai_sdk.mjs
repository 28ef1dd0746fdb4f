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

await takeAll(async (turn, streamed, prompt) => {
  const request = { model, prompt, ...(turn === "tools" && { tools, stopWhen: stepCountIs(5) }) };
  if (!streamed) {
    const answer = await generateText(request);
    return [answer.text, answer.reasoningText];
  }
  let failure = null;
  const answer = streamText({ ...request, onError: ({ error }) => { failure = error; } });
  try {
    return [await answer.text, await answer.reasoningText];
  } catch (error) {
    throw failure ?? error;
  }
});
