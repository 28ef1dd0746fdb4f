// The state of the server, from /info and /metrics.

import { StatusPanel } from "../status/status_panel.js";

export const status = {
  id: "status",
  title: "Status",
  about: "What this server does now, and the models that it has.",
  Panel: StatusPanel,
};
