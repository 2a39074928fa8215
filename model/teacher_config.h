// What the matrices of a teacher's blocks are stored in, the words of train.teacher_base.
#pragma once

#include <cstdint>

#include "kernels/base/words.h"

namespace tessera {

enum class TeacherBase : uint8_t {
  kAuto,  // as they are computed: train.precision
  kFp8,
  kNf4,
  kNf4Double,
  kMxfp4,
};
constexpr auto words_of(TeacherBase) {
  return std::array{Word{"auto", TeacherBase::kAuto}, Word{"fp8", TeacherBase::kFp8},
                    Word{"nf4", TeacherBase::kNf4}, Word{"nf4_double", TeacherBase::kNf4Double},
                    Word{"mxfp4", TeacherBase::kMxfp4}};
}

}  // namespace tessera
