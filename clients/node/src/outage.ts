import { NotCounted } from './values.js';

/** How often a server is probed, and for how long a probe waits at most. */
export const PROBE_MS = 1_000;

/** The time while a server is unreachable or does not reply. Calls fail at once, and a probe each second may end it. */
export class Outage {
  private begun: { at: number; reason: string; why: string } | undefined;
  private timer: NodeJS.Timeout | undefined;

  /** `probe` returns whether the server replies. It must not reject. */
  constructor(private readonly server: string, private readonly probe: () => Promise<boolean>) {}

  /** The error of calls during the outage. */
  get error(): NotCounted | undefined {
    if (!this.begun) return undefined;
    const { at, reason, why } = this.begun;
    const seconds = Math.round((performance.now() - at) / 1000);
    return new NotCounted(reason, `${this.server} has been unreachable for ${seconds} s: ${why}`, undefined, true);
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
