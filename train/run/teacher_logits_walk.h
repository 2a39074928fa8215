// The largest logits that a model gives after each token of a stream: what ./evaluate --teacher-logits
// writes.
#pragma once

#include "data/packed_loader.h"
#include "data/teacher_logits.h"
#include "train/run/collective_walk.h"
#include "train/session/session.h"

namespace tessera {

struct TeacherLogitsJob {
  const PackedLoader& data;  // of all documents of the stream
  double temperature;
  TeacherLogitsWriter& writer;  // open
};

// Batches over all sequences of `job`, which must outlive them. They write their records. Their only result
// is the number of records.
SharedBatches teacher_logits_batches(Session& session, const TeacherLogitsJob& job);

}  // namespace tessera
