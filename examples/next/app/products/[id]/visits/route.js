import { respond, visits } from '../../../../lib/counts.js';

export async function POST(request, { params }) {
  const { id } = await params;
  return respond(visits.countView(request, id));
}
