// The tasks of the page, in the order of its tabs. A task without a route needs no model.

import { chat } from "./tabs/chat.js";
import { classify } from "./tabs/classify.js";
import { embed } from "./tabs/embed.js";
import { entities } from "./tabs/entities.js";
import { fillMask } from "./tabs/fill_mask.js";
import { generate } from "./tabs/generate.js";
import { questionAnswer } from "./tabs/question_answer.js";
import { rerank } from "./tabs/rerank.js";
import { speech } from "./tabs/speech.js";
import { status } from "./tabs/status.js";
import { translate } from "./tabs/translate.js";
import { zeroShot } from "./tabs/zero_shot.js";

export const TASKS = [
  { title: "Write", tasks: [chat, generate] },
  { title: "Translate and listen", tasks: [translate, speech] },
  { title: "Understand", tasks: [embed, classify, zeroShot, entities, fillMask, questionAnswer, rerank] },
  { title: "Server", tasks: [status] },
];
