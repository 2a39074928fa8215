#include "train/session/store_homes.h"

#include "kernels/base/check.h"
#include "kernels/base/present.h"

namespace tessera {
namespace {

const StoredFormat& format_of(BaseForm base) {
  switch (base) {
    case BaseForm::kAuto:
    case BaseForm::kFp8:
      return fp8_format();
    case BaseForm::kNf4:
      return four_bit_format(FourBits::kNf4);
    case BaseForm::kNf4Double:
      return nf4_double_format();
    case BaseForm::kMxfp4:
      return four_bit_format(FourBits::kMxfp4);
  }
  fail("no such form of a base");
}

// The ranks that split the parameters
Communicator* shard_of(const StepAxes& axes) { return axes.shard ? axes.shard : axes.all; }

void check_axes(const RunShape& shape, const StepAxes& axes) {
  const auto check_size = [&](Axis axis, const Communicator* of) {
    const int64_t wanted = shape.mesh.place(axis, 0).size, found = of ? of->size() : 1;
    check(found == wanted, "a run with {} ranks on the {} axis was given a communicator of {}", wanted,
          name_of(axis), found);
  };
  check_size(Axis::kAll, axes.all);
  check_size(Axis::kContext, axes.context);
  check_size(Axis::kShard, shard_of(axes));
  check_size(Axis::kReplica, axes.replica);
}

}  // namespace

ParamStore::Homes training_homes(const RunShape& shape, const StepAxes& axes,
                                 std::optional<Arena>& offloaded) {
  check_axes(shape, axes);
  const auto host = [&](bool offloads) { return offloads ? &present(offloaded) : nullptr; };
  return {.shards = shape.shards(),
          .axis = shard_of(axes),
          .replicas = axes.replica,
          .freeze = shape.freeze,
          .fp8 = shape.fp8,
          .weights = {.host = host(shape.offload.weights),
                      .poison = shape.poison == Poison::kNo ? Poison::kNo : Poison::kTargets,
                      .format = &format_of(shape.base),
                      .experts_only = shape.base_of_experts},
          .training = ParamStore::Training{.gradients = {.accumulates = shape.micro_steps > 1,
                                                         .host = host(shape.offload.gradients),
                                                         .poison = shape.poison,
                                                         .reduce_in_fp32 = shape.reduce_in_fp32},
                                           .kept = host(shape.offload.optimizer)}};
}

SessionShape reference_shape(SessionShape shape) {
  shape.model.lora = {};
  return shape;
}

ParamStore::Homes reference_homes(const RunShape& shape) {
  return {.freeze = shape.model.lora ? Freeze::all_but_adapters() : Freeze{},
          .fp8 = shape.fp8,
          .weights = {.format = &format_of(shape.base), .experts_only = shape.base_of_experts}};
}

ParamStore::Homes teacher_homes(const RunShape& shape, const ModelConfig& teacher) {
  const bool in_fp8 = shape.teacher_base == BaseForm::kFp8;
  return {.freeze = Freeze::all_but_adapters(),
          .fp8 = {.gemm_dtype = in_fp8 ? GemmDtype::kFp8 : GemmDtype::kBf16, .edges = true},
          .weights = {.format = &format_of(shape.teacher_base),
                      .experts_only = shape.teacher_base == BaseForm::kMxfp4 && teacher.experts}};
}

SessionShape teacher_shape(SessionShape shape, const ModelConfig& teacher) {
  check(teacher.vocab_size == shape.model.vocab_size,
        "the teacher has a vocabulary of {} tokens, and the model one of {}", teacher.vocab_size,
        shape.model.vocab_size);
  shape.model = teacher;
  shape.mlp_chunk = 0;
  shape.sample_tokens = kNoSamples;
  return shape;
}

}  // namespace tessera
