// Reads server-sent events out of pieces of text, wherever the pieces are cut.

export function sseReader(onFrame) {
  let rest = "";
  return (piece) => {
    rest += piece;
    const lines = rest.split("\n\n");
    rest = lines.pop();
    for (const block of lines) {
      const frame = parseFrame(block);
      if (frame) onFrame(frame);
    }
  };
}

function parseFrame(block) {
  let event = "";
  let id = null;
  let data = "";
  for (let start = 0; start < block.length; ) {
    const end = block.indexOf("\n", start) + 1 || block.length + 1;
    if (block.startsWith("data: ", start)) data += block.slice(start + 6, end - 1);
    else if (block.startsWith("id: ", start)) id = Number(block.slice(start + 4, end - 1));
    else if (block.startsWith("event: ", start)) event = block.slice(start + 7, end - 1);
    start = end;
  }
  return event ? { event, id, data: JSON.parse(data) } : null;
}
