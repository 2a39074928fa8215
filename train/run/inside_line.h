// The figures of a line of type "inside" in metrics.jsonl
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/session/inside.h"

namespace tessera {

// For each part a list, by layer; null where a block trains no such part. Numbers have five digits.
nlohmann::ordered_json inside_json(const InsideFigures& figures);

}  // namespace tessera
