#include <algorithm>
#include <ranges>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "model/stages.h"

namespace tessera {
namespace {

// The stages of a block that run over all rows, and those that run chunk by chunk
using StageList = std::span<const StageRow* const>;
struct StageLists {
  StageList whole, chunked;
};
StageLists stage_lists(const Block& b) {
  const StageList rows = b.kind.stages;
  const bool chunks = b.pass.model.chunks_mlp();
  const auto first =
      std::ranges::find_if(rows, [&](const StageRow* row) { return chunks && row->in_chunks; });
  const auto count = static_cast<size_t>(first - rows.begin());
  return {.whole = rows.first(count), .chunked = rows.subspan(count)};
}

// What the stages of the MLP read and write of some rows. The hidden layer has room for one chunk.
BlockSaved chunk_of(const BlockSaved& s, int64_t first, int64_t count) {
  const auto rows = [&](const Tensor& of, int64_t from) { return of ? of.rows(from, count) : Tensor{}; };
  BlockSaved chunk;
  chunk.norm2.y = rows(s.norm2.y, first);
  chunk.residual_mid = rows(s.residual_mid, first), chunk.residual_out = rows(s.residual_out, first);
  chunk.mlp = {.expand_adapter = rows(s.mlp.expand_adapter, 0),
               .contract_adapter = rows(s.mlp.contract_adapter, first),
               .pre_activation = rows(s.mlp.pre_activation, 0),
               .hidden = rows(s.mlp.hidden, 0)};
  chunk.mlp_branch = {.x = rows(s.mlp_branch.x, first), .rstd = rows(s.mlp_branch.rstd, first)};
  return chunk;
}

// Calls run(chunk, first, count) for the rows of a block, a chunk of its MLP at a time.
template <class Run>
void each_chunk(const Block& b, const Run& run) {
  const int64_t N = b.s.residual_out.shape[0], chunk = rows_at_a_time(b.pass.model.mlp_chunk, N);
  for (int64_t first = 0; first < N; first += chunk) {
    const int64_t count = std::min(chunk, N - first);
    const BlockSaved rows = chunk_of(b.s, first, count);
    run(Block(b, rows), first, count);
  }
}

// Beside the other stages whose results `kept` does not keep
void run_forward(const Block& b, const StageRow& row, Keep kept) {
  const StageRow* reader = b.kind.after(row.stage);
  row.forward(b, {.to_reader = reader ? between(b, *reader, kept) : Handover{},
                  .from_writer = between(b, row, kept)});
}
// The chunked stages, for the rows of a chunk
void run_forward(const Block& chunk, StageList rows, Keep kept) {
  for (const StageRow* row : rows)
    if (!chunk.kind.keeps(kept, row->stage)) run_forward(chunk, *row, kept);
}

void drop_branch(const Block& b, const StageRow& row) {
  if (!row.branch) return;
  const Tensor& sum = row.branch->sum(b);
  drop(b.pass, {.x = sum, .y = sum, .add = row.branch->add(b), .dropout = b.dropout(row.branch->dropout)});
}
void drop_branch_backward(const Block& b, const StageRow& row, const BlockGradients& g) {
  if (row.branch) drop(b.pass, {.x = g.d, .y = g.branch, .dropout = b.dropout(row.branch->dropout)});
}

}  // namespace

void forward_stages(const Block& block, Keep kept) {
  const auto [whole, chunked] = stage_lists(block);
  if (const Probe* probe = block.pass.probe) block.stream.run(FillZero{probe->unit_maxima});
  for (const StageRow* row : whole) {
    if (block.kind.keeps(kept, row->stage)) continue;
    run_forward(block, *row, kept);
    drop_branch(block, *row);
  }
  if (chunked.empty() || kept != Keep::nothing()) return;
  each_chunk(block, [&](const Block& rows, int64_t, int64_t) { run_forward(rows, chunked, kept); });
  drop_branch(block, *chunked.back());
}

bool runs_again(const Model& model, size_t layer) {
  const Keep own = model.keep.at(layer);
  const BlockKind& kind = model.kind(layer);
  const auto writes_over = [&](Keep later) {
    return std::ranges::any_of(kind.stages, [&](const StageRow* row) {
      return !kind.keeps(own, row->stage) && !kind.keeps(later, row->stage);
    });
  };
  for (size_t later = layer + 1; later < static_cast<size_t>(model.config.layers); ++later)
    if (writes_over(model.keep.at(later))) return true;
  return false;
}

void backward_stages(Arena& arena, const Block& b, const BlockBackward& backward) {
  Arena::Scope scope(arena);
  const Pass& pass = b.pass;
  const BlockParams& gradients = *backward.gradients;
  const Tensor& d = backward.d;
  const AttentionSaved& s = b.s.attention;
  const auto like = [&](const char* name, const Tensor& tensor) {
    return arena.alloc(MemoryTag::kActivations, name, d.dtype, tensor.shape);
  };
  const bool apart =
      b.dropout(DropoutKind::kMlpBranch) || b.dropout(DropoutKind::kAttentionBranch) || b.spec.norms_after();
  const BlockGradients g{.w = gradients,
                         .accumulate = pass.accumulate,
                         .d = d,
                         .branch = apart ? like("gradient of a residual branch", d) : d,
                         .attention_output = like("gradient of attention's output", s.output),
                         .qkv = like("gradient of qkv", s.qkv),
                         .attention_workspace = arena.alloc(
                             MemoryTag::kAttention, "attention backward scratch", DType::kF32,
                             {(pass.model.attention.of(b.layer).backward_workspace_bytes + 3) / 4}),
                         .context = pass.model.context ? allocate_context_backward(arena, b.context_buffers)
                                                       : ContextBackward{}};
  const auto handed_to = [&](const StageRow& row) {
    return between(pass, {.layer = b.layer, .gradients = gradients, .row = row});
  };
  const auto run = [&](const Block& rows, const BlockGradients& of_rows, const StageRow& row) {
    const StageRow* reader = b.kind.before(row.stage);
    row.backward(
        rows, of_rows,
        {.to_reader = reader ? handed_to(*reader) : to_block_below(pass, b.layer, backward.below.get()),
         .from_writer = handed_to(row)});
  };
  const auto [whole, chunked] = stage_lists(b);
  if (!chunked.empty()) {
    drop_branch_backward(b, *chunked.back(), g);
    each_chunk(b, [&](const Block& rows, int64_t first, int64_t count) {
      run_forward(rows, chunked, pass.model.keep.at(b.layer));
      BlockGradients of_rows = g;
      of_rows.accumulate = g.accumulate || first > 0;
      of_rows.d = g.d.rows(first, count), of_rows.branch = g.branch.rows(first, count);
      for (const StageRow* row : chunked | std::views::reverse) run(rows, of_rows, *row);
    });
  }
  for (const StageRow* row : whole | std::views::reverse) {
    drop_branch_backward(b, *row, g);
    run(b, g, *row);
  }
}

std::string why_no_decode(const BlockKind& kind, const ModelConfig& config) {
  for (const LinearOfStage& of : kind.linears)  // an adapter stands between a GEMM and its activation
    if (adapts(config.lora, of.linear)) return "LoRA adapters";
  for (const StageRow* row : kind.stages) {
    if (!row->decode) return row->name;
    if (const auto lacks = row->decode->lacks)
      if (std::string what = lacks(config); !what.empty()) return what;
  }
  return "";
}

void decode_stages(const Block& block, DecodeBuilder& to) {
  for (const StageRow* row : block.kind.stages) {
    check(row->decode.has_value(), "a decode step has no operation for {}", row->name);
    if (const auto add = present(row->decode).add) add(block, to);
  }
}

}  // namespace tessera
