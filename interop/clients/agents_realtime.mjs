// npm `@openai/agents-realtime`: an agent with a tool over its WebSocket transport; all at its defaults, semantic_vad too.
//
// The library does the conversation by itself: it cuts the answer it plays at a barge-in, calls the function, sends the
// result and asks for the answer to it. Its `error` event would end a Node program that does not listen to it.

import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';
import * as r from './rehearsal.mjs';

const IN_BROWSER = process.execArgv.includes('--conditions=browser');

class Conversation extends r.Ledger {
  audio = new Map(); // item id → Buffer, in order of appearance
  interrupted = [];
  stopped = 0;
  calls = [];
  detection;

  follow(session) {
    session.on('audio', () => this.changed());
    session.transport.on('audio', (event) => {
      const id = event.responseId;
      if (this.interrupted.includes(id)) this.complain('sound of an answer that was interrupted');
      this.audio.set(id, Buffer.concat([this.audio.get(id) ?? Buffer.alloc(0), Buffer.from(event.data)]));
      this.changed();
    });
    session.on('audio_interrupted', () => {
      this.interrupted.push([...this.audio.keys()].at(-1));
      this.changed();
    });
    session.on('audio_stopped', () => {
      this.stopped += 1;
      this.changed();
    });
    session.on('history_updated', () => this.changed());
    session.on('error', ({ error }) => this.complain(`error: ${JSON.stringify(error)}`));
    session.on('transport_event', (event) => {
      if (event.type === 'session.updated') this.detection = event.session.audio.input.turn_detection;
      if (event.type === 'response.done') this.done.push(event.response);
      this.changed();
    });
  }

  done = [];

  answer(index) {
    return [...this.audio.values()][index];
  }
}

function words(session, role) {
  return session.history
    .filter((item) => item.type === 'message' && item.role === role)
    .map((item) => item.content.map((part) => part.transcript ?? part.text ?? '').join(' '));
}

async function scene(report) {
  const talk = new Conversation();
  const goForward = tool({
    name: 'go_forward',
    description: 'Moves the robot forward.',
    parameters: {
      type: 'object',
      properties: { meters: { type: 'integer', description: 'How far.' } },
      required: ['meters'],
      additionalProperties: false,
    },
    strict: true,
    execute: async ({ meters }) => {
      talk.calls.push(meters);
      talk.changed();
      return r.TOOL_RESULT;
    },
  });
  const agent = new RealtimeAgent({ name: 'robot', instructions: 'You are a robot.', tools: [goForward] });
  const url = `${r.SERVER}/v1/realtime?model=gpt-realtime`;
  const transport = new OpenAIRealtimeWebSocket({ url, useInsecureApiKey: IN_BROWSER });
  const session = new RealtimeSession(agent, { transport });
  talk.follow(session);
  await session.connect({ apiKey: r.KEY, url });
  await talk.until('session.updated', () => talk.detection);
  r.check(talk.detection.type === 'semantic_vad', `turn detection came back as ${JSON.stringify(talk.detection)}`);
  const key = IN_BROWSER ? 'the key as a sub-protocol' : 'the key as a header';
  report.passed('connect', `its defaults: semantic_vad, transcription, tracing; ${key}`);

  const microphone = new r.Microphone((chunk) => session.sendAudio(chunk));
  try {
    await microphone.say('question');
    await talk.until('sound', () => talk.audio.size && r.seconds(talk.answer(0)) >= 2);
    const loud = r.rms(talk.answer(0));
    r.check(loud > r.AUDIBLE_RMS, `the answer is silent (RMS ${loud.toFixed(0)})`);
    await talk.until("the user's words", () => r.hasWords(words(session, 'user').join(' '), r.QUESTION_WORDS));
    report.passed('answer', `understood '${words(session, 'user')[0]}'`);

    r.check(talk.stopped === 0, 'the first answer ended before it could be interrupted');
    await microphone.say('interruption');
    await talk.until('audio_interrupted', () => talk.interrupted.length);
    await talk.until('the end of the first answer', () => talk.done.length);
    r.check(talk.done[0].status === 'cancelled', `the interrupted answer ended as ${talk.done[0].status}`);
    const played = r.seconds(talk.answer(0));
    await talk.until('a whole second answer', () => talk.audio.size > 1 && talk.done.length > 1, r.TALK_S);
    r.check(talk.done[1].status === 'completed', `the second answer ended as ${talk.done[1].status}`);
    const whole = r.seconds(talk.answer(1));
    r.check(whole > 2, `of the second answer only ${whole.toFixed(1)} s were heard`);
    report.passed('interruption', `cut after ${played.toFixed(1)} s, then a whole answer of ${whole.toFixed(1)} s`);

    await microphone.say('command');
    await talk.until('the function', () => talk.calls.length);
    r.check(talk.calls.length === 1 && talk.calls[0] === 10, `called with ${talk.calls}`);
    await talk.until('the answer to its result', () => talk.audio.size > 2 && talk.done.at(-1).id === [...talk.audio.keys()][2], r.TALK_S);
    await talk.until('its words', () => words(session, 'assistant').some((said) => r.hasWords(said, r.TOOL_RESULT_WORDS)));
    report.passed('function', `go_forward(10), then '${words(session, 'assistant').at(-1)}'`);
  } finally {
    microphone.stop();
  }
  const history = session.history.length;
  const gone = new Promise((resolve) => session.transport.on('connection_change', (s) => s === 'disconnected' && resolve()));
  session.close();
  await gone;
  r.check(!talk.complaints.length, talk.complaints.join('; '));
  r.check(words(session, 'user').length === 3, `the history of the user is ${words(session, 'user')}`);
  report.passed('end', `closed; ${history} items of history`);
}

await r.rehearse(new r.Report(IN_BROWSER ? 'agents-realtime-web' : 'agents-realtime', '@openai/agents-realtime'), scene);
