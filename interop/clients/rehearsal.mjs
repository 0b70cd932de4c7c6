// What a Node client of the suite shares with the Python ones (rehearsal.py): microphone, ledger, report.

import { readFileSync } from 'node:fs';
import { join } from 'node:path';

export const RATE_HZ = 24_000;
export const SERVER = process.env.INTEROP_URL;
export const KEY = process.env.INTEROP_KEY;
export const ANSWER_S = 20;
export const TALK_S = 40;
export const AUDIBLE_RMS = 300;
export const QUESTION_WORDS = ['young', 'man'];
export const TOOL_RESULT = 'moved, the battery is low';
export const TOOL_RESULT_WORDS = ['battery', 'low'];
const STEPS = ['connect', 'answer', 'interruption', 'function', 'end'];

export class StepFailed extends Error {}

export function check(fact, what) {
  if (!fact) throw new StepFailed(what);
}

export function hasWords(text, words) {
  const said = (text ?? '').toLowerCase();
  return words.every((word) => said.includes(word));
}

export function rms(pcm) {
  let sum = 0;
  for (let at = 0; at + 1 < pcm.length; at += 2) sum += pcm.readInt16LE(at) ** 2;
  return pcm.length ? Math.sqrt(sum / (pcm.length / 2)) : 0;
}

export const seconds = (pcm) => pcm.length / (RATE_HZ * 2);

function recording(name) {
  const file = readFileSync(join(process.env.INTEROP_SPEECH, `${name}.wav`));
  let at = 12;
  while (file.toString('latin1', at, at + 4) !== 'data') at += 8 + file.readUInt32LE(at + 4);
  return file.subarray(at + 8, at + 8 + file.readUInt32LE(at + 4));
}

// Sends a chunk every 100 ms in real time until stopped: what is to be said, else silence.
export class Microphone {
  #pending = Buffer.alloc(0);
  #said = () => {};
  #timer;

  constructor(send, chunkMs = 100) {
    const size = (chunkMs * RATE_HZ * 2) / 1000;
    const began = performance.now();
    let sent = 0;
    this.#timer = setInterval(() => {
      for (; sent * chunkMs <= performance.now() - began; sent += 1) {
        const chunk = Buffer.alloc(size);
        this.#pending.copy(chunk);
        this.#pending = this.#pending.subarray(size);
        send(chunk.buffer.slice(chunk.byteOffset, chunk.byteOffset + size));
        if (!this.#pending.length) this.#said();
      }
    }, chunkMs / 4);
  }

  say(name) {
    this.#pending = Buffer.concat([this.#pending, recording(name)]);
    return new Promise((resolve) => (this.#said = resolve));
  }

  stop() {
    clearInterval(this.#timer);
  }
}

// State that callbacks change and steps wait on.
export class Ledger {
  complaints = [];
  #waiting = new Set();

  changed() {
    for (const look of [...this.#waiting]) look();
  }

  complain(what) {
    this.complaints.push(what);
    this.changed();
  }

  until(what, fact, withinS = ANSWER_S) {
    return new Promise((resolve, reject) => {
      const end = (settle) => {
        clearTimeout(timer);
        this.#waiting.delete(look);
        settle();
      };
      const look = () => {
        if (this.complaints.length) end(() => reject(new StepFailed(`with ${what}: ${this.complaints.join('; ')}`)));
        else if (fact()) end(resolve);
      };
      const late = () => end(() => reject(new StepFailed(`${what}: not within ${withinS} s`)));
      const timer = setTimeout(late, withinS * 1000);
      this.#waiting.add(look);
      look();
    });
  }
}

export class Report {
  #steps = {};

  constructor(client, ...packages) {
    this.client = client;
    this.versions = Object.fromEntries(
      packages.map((name) => {
        const file = new URL(`../node_modules/${name}/package.json`, import.meta.url);
        return [name, JSON.parse(readFileSync(file, 'utf8')).version];
      }),
    );
  }

  #set(step, status, detail) {
    this.#steps[step] = { status, detail };
    console.log(`  ${step}: ${status}: ${detail}`);
  }

  passed(step, detail) {
    this.#set(step, 'pass', detail);
  }

  failed(why) {
    this.#set(STEPS.find((step) => !(step in this.#steps)) ?? 'end', 'fail', why);
  }

  print() {
    console.log(JSON.stringify({ client: this.client, versions: this.versions, steps: this.#steps }));
    return STEPS.every((step) => this.#steps[step] && this.#steps[step].status !== 'fail');
  }
}

// Runs `scene`, prints the report, and lets the process end by itself: what is left open keeps it, and the runner sees.
export async function rehearse(report, scene) {
  try {
    await scene(report);
  } catch (error) {
    if (!(error instanceof StepFailed)) console.log(error);
    report.failed(error.message);
  }
  const ok = report.print();
  if (!ok) process.exit(1);
  setTimeout(() => {
    console.log('something is still open after the end');
    process.exit(3);
  }, 10_000).unref();
}
