// Reads server-sent events out of pieces of text, wherever the pieces are cut.

export function sseReader(onFrame) {
  let rest = "";
  return (piece) => {
    rest += piece;
    const lines = rest.split("\n\n");
    rest = lines.pop();
    for (const block of lines) {
      const frame = parsed(block);
      if (frame) onFrame(frame);
    }
  };
}

function parsed(block) {
  let event = "";
  let id = null;
  let data = "";
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    const name = line.slice(0, colon);
    const value = line.slice(colon + 2);
    if (name === "event") event = value;
    else if (name === "id") id = Number(value);
    else if (name === "data") data += value;
  }
  return event ? { event, id, data: JSON.parse(data) } : null;
}
