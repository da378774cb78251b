// Where in its width a run's moments are drawn. Somebody may have slept on an approval: long pauses are drawn short.

import { endOfRun } from "./spans.js";

const BUSY_KINDS = new Set(["model", "summary", "tool", "asked"]);
// A pause is as wide as this part of all the work, at most.
const LONGEST_PAUSE_PART = 0.15;

export function scaleFor(run) {
  if (run.scaledAt !== run.version) {
    run.scale = makeTimeScale(run);
    run.scaledAt = run.version;
  }
  return run.scale;
}

// A function from a time to a part of the width, between 0 and 1.
function makeTimeScale(run) {
  const end = endOfRun(run);
  const pieces = timeSegments(run, end);
  const work = pieces.reduce((sum, { busy, from, to }) => sum + (busy ? to - from : 0), 0);
  const most = work > 0 ? work * LONGEST_PAUSE_PART : Infinity;
  let width = 0;
  const stops = [{ time: run.begun, place: 0 }];
  for (const { busy, from, to } of pieces) {
    width += busy ? to - from : Math.min(to - from, most);
    stops.push({ time: to, place: width });
  }
  return (time) => (width > 0 ? placeAtTime(stops, time) / width : 0);
}

function placeAtTime(stops, time) {
  let [low, high] = [0, stops.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (stops[middle].time < time) low = middle + 1;
    else high = middle;
  }
  const after = stops[low];
  const before = stops[Math.max(low - 1, 0)];
  if (time >= after.time || after.time === before.time) return after.place;
  return before.place + ((after.place - before.place) * Math.max(time - before.time, 0)) / (after.time - before.time);
}

// The time of the run in pieces, in which something is done or nothing is.
function timeSegments(run, end) {
  const points = [];
  const from = (time) => Math.min(Math.max(time, run.begun), end);
  const note = (span, work, wait) => {
    points.push({ time: from(span.from), work, wait }, { time: from(span.to ?? end), work: -work, wait: -wait });
  };
  for (const span of run.spans) if (BUSY_KINDS.has(span.kind)) note(span, 1, 0);
  for (const wait of run.waits) note(wait, 0, 1);
  points.sort((one, other) => one.time - other.time);
  points.push({ time: end, work: 0, wait: 0 });
  const found = [];
  let [last, working, waiting] = [run.begun, 0, 0];
  for (const { time, work, wait } of points) {
    const busy = working > 0 && waiting === 0;
    if (time > last) {
      if (found.length && found.at(-1).busy === busy) found.at(-1).to = time;
      else found.push({ busy, from: last, to: time });
    }
    last = Math.max(last, time);
    working += work;
    waiting += wait;
  }
  return found;
}
