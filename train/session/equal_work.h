// Which sequences of a step each rank of the data axis takes, so that all work equally long.
//
// Where documents do not see each other, a sequence of one long document has many times the pairs of a query
// and a key of one of short documents. Each rank gets as many sequences, so that linear layers have as many
// rows; and of all ways about the one with equal pairs. A function of the documents and the shape alone:
// every rank computes the same, and so does a run that resumes. The sequences of a step stay the same.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "train/session/run_shape.h"

namespace tessera {

// Whether the ranks of a run take the sequences of a step by their work; otherwise each takes the next ones
// in turn. Dropout draws its masks by the place of a sequence in the step, which then has to be the same for
// any number of ranks.
bool takes_by_work(const RunShape& shape);

// The sum of attention_span() over the tokens of a sequence of documents of these lengths: twice the pairs of
// a query and a key, which are the work of attention
double attention_spans(const ModelConfig& model, std::span<const int64_t> lengths);

// The work of the sequence at each place of a step, whose documents have the lengths `lengths_of(place)`;
// empty unless takes_by_work().
std::vector<double> work_of_step(const RunShape& shape,
                                 const std::function<std::vector<int64_t>(int64_t place)>& lengths_of);

// Which sequences of a step a rank of the data axis takes, as places in the step: its micro-batches one after
// another. `work`: that of work_of_step()
//
// Ranks that split the weights wait for each other in every micro-batch. So the sequences with the most work
// are in the first micro-batches of all ranks, those with the least in the last ones; and within a
// micro-batch the largest share goes to the rank that has had the least.
std::vector<int64_t> places_of_rank(const RunShape& shape, const AxisPlace& rank,
                                    std::span<const double> work);

}  // namespace tessera
