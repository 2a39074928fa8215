// The curves of runs as one SVG file, for a document.
#pragma once

#include <span>
#include <string>

#include "train/report/run_record.h"

namespace tessera {

// Loss, learning rate, gradient norm, tokens/s and MFU over the steps. A single run has one colour for
// training and one for validation; several runs have one colour each.
std::string report_svg(std::span<const RunRecord> runs);

// Only the validation losses, up to 1.3 times the lowest of them, so that runs that end close together can be
// distinguished. Error: no run has one.
std::string validation_svg(std::span<const RunRecord> runs);

// The validation loss by position of each run: of the first evaluation with each sequence length (dashed),
// and of the newest evaluation. Error: no run has one.
std::string position_svg(std::span<const RunRecord> runs);

}  // namespace tessera
