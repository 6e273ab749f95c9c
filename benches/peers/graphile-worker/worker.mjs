// The peer graphile-worker of the benches `stages` and `latency`: `worker.mjs VERB JSON`, in the folder where the package is installed.
//
// set-up   makes the tables
// fill     empties them, and adds the jobs that are due when a turn begins
// work     does them: says `ready`, waits for a line, and says what it did when the last completion is written
// serve    hands each job to the endpoint until it is told to end
//
// It uses nothing but what the package documents, but for one thing: the class `Client` holds back the first look for jobs until the turn begins,
// and counts the completions that the server has confirmed.

import { once } from "node:events";
import { Agent, request } from "node:http";
import { createInterface } from "node:readline";
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";

const [verb, json] = process.argv.slice(2);
const settings = JSON.parse(json);

// Without it the package writes a line for each job.
process.env.NO_LOG_SUCCESS = "1";
const logger = new Logger(() => (level, message) => {
  if (level === "error") console.error(message);
});

const preset = {
  worker: {
    connectionString: settings.url,
    concurrentJobs: settings.jobs_at_once,
    maxPoolSize: settings.connections,
    localQueue: { size: settings.local_queue },
    completeJobBatchDelay: settings.batch_delay_ms,
    failJobBatchDelay: settings.batch_delay_ms,
    preparedStatements: true,
  },
};

const terminated = once(process, "SIGTERM");

const stageName = (number) => `STAGE_${number}`;

/** A promise that is kept from outside. */
function promised() {
  const made = {};
  made.kept = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/** What a turn waits for. */
const turn = {
  arrived: promised(),
  begun: promised(),
  ended: promised(),
  left: settings.rows * settings.stages,
};

class Client extends pg.Client {
  async query(query, ...further) {
    const name = query?.name ?? "";
    if (name.startsWith("get_job")) {
      turn.arrived.resolve();
      await turn.begun.kept;
    }
    const result = await super.query(query, ...further);
    if (name.startsWith("complete_job")) {
      turn.left -= result.rowCount;
      if (turn.left === 0) turn.ended.resolve();
    }
    return result;
  }
}

/** Connections as a process that has run for a while has them. */
async function openPool() {
  const pool = new pg.Pool({ connectionString: settings.url, max: settings.connections, Client });
  pool.on("error", (error) => console.error(error));
  pool.on("connect", (client) => client.on("error", (error) => console.error(error)));
  const clients = await Promise.all(Array.from({ length: settings.connections }, () => pool.connect()));
  for (const client of clients) client.release();
  return pool;
}

/**
 * Adds jobs with one `addJobs` for all that ask while another is under way. Each caller waits until its own is committed: `addJob` for each would
 * wait for the lock that a transaction with NOTIFY holds until its commit is on disk, one after the other.
 */
class Adding {
  #next = null;
  #adds = false;

  add(job, addJobs) {
    this.#next ??= { jobs: [], ...promised() };
    this.#next.jobs.push(job);
    const { kept } = this.#next;
    if (!this.#adds) {
      this.#adds = true;
      setImmediate(() => this.#addAll(addJobs));
    }
    return kept;
  }

  async #addAll(addJobs) {
    while (this.#next) {
      const { jobs, resolve, reject } = this.#next;
      this.#next = null;
      await addJobs(jobs).then(resolve, reject);
    }
    this.#adds = false;
  }
}

/** The endpoint of `stages`: a call ends in the process itself. */
class Trivial {
  calls = 0;
  peak = 0;
  #inFlight = 0;

  async call() {
    this.calls += 1;
    this.#inFlight += 1;
    this.peak = Math.max(this.peak, this.#inFlight);
    this.#inFlight -= 1;
  }
}

async function fill() {
  const utils = await makeWorkerUtils({ preset, logger });
  await utils.withPgClient((client) => client.query("TRUNCATE graphile_worker._private_jobs"));
  const begun = Date.now() - settings.rows;
  const jobs = Array.from({ length: settings.rows }, (_, index) => ({
    identifier: stageName(1),
    payload: {
      group_id: `g${String(Math.floor(index / settings.group_rows)).padStart(11, "0")}`,
      quote_id: String(index).padStart(8, "0"),
      premium: 100.5,
    },
    runAt: new Date(begun + index),
  }));
  for (let from = 0; from < jobs.length; from += 10_000) await utils.addJobs(jobs.slice(from, from + 10_000));
  await utils.release();
}

/** The tasks of all stages, one after the other. */
function tasks(endpoint) {
  const adding = new Adding();
  const task = (number) => async (payload, { addJobs }) => {
    await endpoint.call();
    if (number < settings.stages) await adding.add({ identifier: stageName(number + 1), payload }, addJobs);
  };
  return Object.fromEntries(Array.from({ length: settings.stages }, (_, index) => [stageName(index + 1), task(index + 1)]));
}

async function work() {
  const endpoint = new Trivial();
  const pgPool = await openPool();
  const runner = await run({ pgPool, preset, logger, taskList: tasks(endpoint), crontab: "", noHandleSignals: true });
  await turn.arrived.kept;
  const told = createInterface({ input: process.stdin });
  console.log("ready");
  await once(told, "line");
  turn.begun.resolve();
  await turn.ended.kept;
  console.log(JSON.stringify({ calls: endpoint.calls, peak: endpoint.peak }));
  await terminated;
  await runner.stop();
  await pgPool.end();
}

/** Posts as the other sides do: one request for each job, over connections that stay. */
function post(agent, endpoint, body) {
  const { kept, resolve, reject } = promised();
  const options = { agent, method: "POST", headers: { "content-type": "application/json", "content-length": Buffer.byteLength(body) } };
  const sent = request(endpoint, options, (response) => {
    response.resume();
    response.on("end", () => (response.statusCode === 200 ? resolve() : reject(new Error(`the endpoint said ${response.statusCode}`))));
  });
  sent.on("error", reject);
  sent.end(body);
  return kept;
}

async function serve() {
  const agent = new Agent({ keepAlive: true });
  turn.begun.resolve();
  const pgPool = await openPool();
  const taskList = { [stageName(1)]: (payload) => post(agent, settings.endpoint, JSON.stringify(payload)) };
  const runner = await run({ pgPool, preset, logger, taskList, crontab: "", noHandleSignals: true });
  await turn.arrived.kept;
  console.log("ready");
  await terminated;
  await runner.stop();
  await pgPool.end();
  agent.destroy();
}

const verbs = { "set-up": () => runMigrations({ preset, logger }), fill, work, serve };
await verbs[verb]();
process.exit(0);
