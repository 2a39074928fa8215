// Which blocks the queries of one sequence choose, on a GPU.
#pragma once

#include "kernels/attention/mixture/workspace.h"

namespace tessera::attention {

// The choice of a problem of one sequence, to workspace.first_keys. `q` and `k` begin with its first heads.
AttnStatus choose_blocks(const AttnProblem& p, const AttnTensor& q, const AttnTensor& k,
                         const ChoiceWorkspace& workspace, CUstream_st* stream);

}  // namespace tessera::attention
