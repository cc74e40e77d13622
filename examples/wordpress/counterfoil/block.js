// The block "Most viewed posts" in the editor; the server renders it.
(({ blocks, blockEditor, components, element, serverSideRender }) => {
  const { createElement: el } = element;
  const name = 'counterfoil/most-viewed';
  const periods = { today: 'Today', week: 'Seven days', all: 'All time' };
  blocks.registerBlockType(name, {
    apiVersion: 2,
    title: 'Most viewed posts',
    category: 'widgets',
    icon: 'chart-bar',
    edit: ({ attributes, setAttributes }) =>
      el('div', blockEditor.useBlockProps(),
        el(blockEditor.InspectorControls, {},
          el(components.PanelBody, { title: 'Most viewed posts' },
            el(components.SelectControl, {
              label: 'Period',
              value: attributes.period,
              options: Object.entries(periods).map(([value, label]) => ({ value, label })),
              onChange: (period) => setAttributes({ period }),
            }),
            el(components.RangeControl, {
              label: 'Number of posts',
              value: attributes.number,
              min: 1,
              max: 50,
              onChange: (number) => setAttributes({ number }),
            }))),
        el(serverSideRender, { block: name, attributes })),
    save: () => null,
  });
})(wp);
