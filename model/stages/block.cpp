#include "model/stages.h"

namespace tessera {

Block::Block(const Pass& own, const Saved& saved, size_t number, LeaseFor use)
    : pass(own),
      stream(own.stream),
      config(own.model.config),
      layer(number),
      kind(own.model.kind(number)),
      spec(kind.spec),
      lease(own.model.lease_block(number, use)),
      w(*lease),
      s(saved.blocks[number]),
      x(saved.block_input(number)),
      attention_workspace(saved.attention_workspace),
      context_buffers(saved.context),
      expert_rows(saved.expert_rows) {
  stream.enter(static_cast<int64_t>(number), use == LeaseFor::kBackward);
}

Block::Block(const Block& whole, const BlockSaved& rows)
    : pass(whole.pass),
      stream(whole.stream),
      config(whole.config),
      layer(whole.layer),
      kind(whole.kind),
      spec(whole.spec),
      w(whole.w),
      s(rows),
      x(whole.x),
      attention_workspace(whole.attention_workspace),
      context_buffers(whole.context_buffers),
      expert_rows(whole.expert_rows) {}

Norm Block::norm1() const {
  return {spec.norm, config.norm_epsilon, config.norm_offset(), w.norm1, s.norm1, x};
}
Norm Block::norm2() const {
  return {spec.norm, config.norm_epsilon, config.norm_offset(), w.norm2, s.norm2, s.residual_mid};
}

Attention Block::attention() const {
  const Model& model = pass.model;
  Attention own{.config = config,
                .weights = w.attention,
                .saved = s.attention,
                .plan = model.attention.of(layer),
                .decode = model.attention.decode_of(layer),
                .workspace = attention_workspace,
                .angles = spec.local_angles ? model.local_angles
                          : spec.rotary     ? model.angles
                                            : Tensor{},
                .dropout = pass.dropout.at(DropoutKind::kAttention, layer),
                .positions = pass.batch.positions,
                .tables = pass.batch.mask_tables(model.attention.of(layer).shape.mask.window),
                .context = {.axis = model.context, .tables = pass.batch.context, .buffers = context_buffers}};
  if (const KvCache* cache = pass.batch.cache) {
    own.cache = cache->layers[layer], own.starts = cache->starts;
    own.unrolled = cache->unrolled, own.decoded = cache->decoded;
  }
  if (own.plan.shape.mask.blocks.size > 0 || (own.decode && own.decode->shape.blocks.size > 0))
    own.tables.blocks = model.sparse.numbers_of(spec.sparse);
  own.plan.scale = attention_scale(config, layer, own.plan.scale);
  if (own.decode) own.decode->scale = own.plan.scale;
  return own;
}

LinearLayer Block::linear(Stage stage, size_t which) const {
  const LinearOfStage& of = kind.linears_of(stage)[which];
  const Fp8Linear& fp8 = pass.model.fp8_of(layer, of);
  return {.weights = of.weights(w),
          .fp8 = fp8,
          .parts = adapter_rows(config.lora, of.linear),
          .u = of.adapter(s),
          .scale = config.lora ? config.lora.scale() : 0,
          .saturated_x = pass.probe ? pass.probe->saturated_x(fp8) : Tensor{},
          .saturated_dy = pass.backward_probe ? pass.backward_probe->saturated_dy(fp8) : Tensor{}};
}

}  // namespace tessera
