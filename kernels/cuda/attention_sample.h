// The largest scores, computed without tensor cores, for any dtype and head dim.
#pragma once

#include "kernels/score_ops.h"

namespace tessera {

void largest_scores_of_rows(const LargestScores& a, CUstream_st* stream);

}  // namespace tessera
