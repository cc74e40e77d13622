import { NotCounted, UNREACHABLE } from './values.js';

/** The interval of probes, and how long a probe waits at most. */
export const PROBE_MS = 1_000;

/**
 * The time while a server does not reply, or while no daemon has configured a family. Calls fail at once, and a probe each second
 * may end it.
 */
export class Outage {
  private begun: { at: number; reason: string; why: string } | undefined;
  private timer: NodeJS.Timeout | undefined;

  /** `probe` returns whether the outage is over, and must not reject. The outage of a family has no `server`. */
  constructor(private readonly probe: () => Promise<boolean>, private readonly server?: string) {}

  /** The error of calls during the outage. */
  get error(): NotCounted | undefined {
    if (!this.begun) return undefined;
    const { at, reason, why } = this.begun;
    const seconds = Math.floor((performance.now() - at) / 1000);
    const state = reason === UNREACHABLE ? 'unreachable' : reason;
    const duration = seconds > 0 ? `has been ${state} for ${seconds} s` : `is ${state}`;
    return new NotCounted(reason, this.server ? `${this.server} ${duration}: ${why}` : why, undefined, true);
  }

  /** Begins, as of the time `at`. */
  begin(reason: string, why: string, at: number): void {
    if (this.begun) return;
    this.begun = { at, reason, why };
    this.schedule();
  }

  /** Probes now, if there is an outage. */
  async retry(): Promise<void> {
    if (this.begun && (await this.probe())) this.begun = undefined;
  }

  private schedule(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => void this.retry().then(() => this.begun && this.schedule()), PROBE_MS).unref();
  }
}
