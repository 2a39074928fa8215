#include "model/params.h"

namespace tessera {

Params allocate_params(Arena& arena, MemoryTag tag, std::string_view kind, DType dtype,
                       const ModelConfig& config) {
  Params params;
  params.blocks.resize(static_cast<size_t>(config.layers));
  for_each_param(params, config, [&](const ParamInfo& info, Tensor& tensor) {
    tensor = arena.alloc(tag, fmt::format("{} {}", kind, info.name), dtype, info.shape);
  });
  return params;
}

}  // namespace tessera
