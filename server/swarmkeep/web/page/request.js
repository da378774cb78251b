// The exact request that a model was sent: to be read, and to be sent again by hand.

import { copyButton, clear, h, pretty } from "./dom.js";
import { getText, sessionPath } from "./api.js";
import { escapedSigns } from "./jsontext.js";
import { text } from "./text.js";

const HEREDOC_END = "END_OF_REQUEST";

export function requestNode(session, seq) {
  const place = h("div", { class: "request" }, h("p", { class: "muted", role: "status" }, text.timeline.loading));
  getText(sessionPath(session, `/events/${seq}/request`)).then(
    (body) => clear(place, ...shownRequest(body)),
    (error) => clear(place, h("p", { class: "reason" }, error.message)),
  );
  return place;
}

function shownRequest(body) {
  const block = (value) => h("pre", { class: "code", tabindex: 0, dir: "ltr" }, value);
  const curl = h("details", { class: "fold" }, h("summary", {}, text.timeline.asCurl));
  curl.addEventListener("toggle", () => {
    if (!curl.open || curl.childElementCount > 1) return;
    const command = curlOf(body);
    curl.append(h("p", { class: "muted" }, text.timeline.asCurlHint), h("div", { class: "row" }, copyButton(() => command)), block(command));
  });
  return [h("div", { class: "row" }, h("p", { class: "muted grow" }, text.timeline.requestBytes(new Blob([body]).size)), copyButton(() => body)), block(pretty(body)), curl];
}

// For a shell. The key comes from its environment, and the body by a here-document: a long one is too long for an argument.
// A JSON text has no line breaks in it, so that nothing in it can end the document.
function curlOf(body) {
  // In a terminal some signs do more than to stand there.
  const safe = escapedSigns(body.replaceAll(/\r?\n/g, " "));
  return [
    'curl "${OPENAI_BASE_URL:-https://api.openai.com/v1}/chat/completions" \\',
    '  -H "Authorization: Bearer $OPENAI_API_KEY" \\',
    '  -H "Content-Type: application/json" \\',
    `  --data-binary @- <<'${HEREDOC_END}'`,
    safe,
    HEREDOC_END,
    "",
  ].join("\n");
}
