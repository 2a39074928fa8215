#include "model/distillation.h"

#include "model/transformer.h"

namespace tessera {
namespace {

Tensor teacher_rows(Arena& arena, const Pass& pass) {
  const Model& teacher = *pass.model.teacher;
  const Tensor rows =
      arena.alloc(MemoryTag::kActivations, "final norm of the teacher", teacher.attention.dtype(),
                  {teacher.attention.rows(), teacher.config.channels});
  Arena::Scope scope(arena);
  const Saved saved = allocate_saved(arena, teacher, Keep::nothing());
  forward(pass.stream, {.model = teacher, .batch = pass.batch, .saved = saved});
  pass.stream.run(Copy{saved.norm.y, rows});
  return rows;
}

}  // namespace

LossRule distillation(const DistillationRule& rule, int64_t largest) {
  const LossRule evaluated = cross_entropy();
  LossRule made{.name = "distillation",
                .run =
                    [rule, evaluated](const Stream& stream, const LogitRows& of) {
                      if (!of.trains) return evaluated.run(stream, of);
                      const LossRows& rows = of.rows;
                      stream.run(Distillation{.logits = of.logits,
                                              .teacher = of.teacher,
                                              .targets = rows.targets,
                                              .losses = rows.losses,
                                              .vocab_size = rows.vocab_size,
                                              .want_gradient = true,
                                              .temperature = static_cast<float>(rule.temperature),
                                              .cross_entropy = static_cast<float>(rule.cross_entropy),
                                              .reverse = static_cast<float>(rule.reverse),
                                              .gradient_scale = rows.gradient_scale,
                                              .weights = rows.weights,
                                              .largest_ids = of.teacher_ids,
                                              .largest = of.teacher_logits});
                    },
                .teacher_logits = largest};
  if (largest == 0) made.teacher_rows = teacher_rows;
  return made;
}

}  // namespace tessera
