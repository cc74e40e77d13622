import { respond, views } from '../../../../lib/counts.js';

export async function POST(request, { params }) {
  const { id } = await params;
  return respond(views.countView(request, id));
}
