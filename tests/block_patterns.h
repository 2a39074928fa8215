// Blocks that keep different things, for models of five blocks or fewer.
#pragma once

#include "model/by_block.h"
#include "model/keep.h"

namespace tessera::testing {

// In two groups, in which a block may be the last that writes over what it does not keep; and in several that
// share some of it
inline std::vector<ByBlock<Keep>> mixed_keeps() {
  using R = Recomputed;
  return {ByBlock<Keep>({{kKeepAttention, 2}, {kKeepAll}}), ByBlock<Keep>({{kKeepAll, 1}, {kKeepOutputs}}),
          ByBlock<Keep>({{Keep{R::kNorms, R::kMlp}, 3}, {Keep{R::kNorms, R::kActivation}}}),
          ByBlock<Keep>({{Keep{R::kNorms}, 1}, {kKeepAllButMlp, 2}, {Keep{R::kAttention}}}),
          ByBlock<Keep>({{kKeepOutputs, 1}, {kKeepAll, 1}, {kKeepAttention, 1}, {Keep{R::kActivation}}})};
}

}  // namespace tessera::testing
