// Writes the tokens that llm.c trains on, in the order in which it reads them. llm.c's own reader is compiled
// into this.
//   order PATTERN BATCH LENGTH COUNT FILE
// COUNT micro-batches of BATCH sequences of LENGTH tokens go into FILE, a shard. The last target of
// a micro-batch differs: in the file the next micro-batch follows, not the token that llm.c has there. That
// is one target in BATCH x LENGTH.
#include "llmc/dataloader.h"

int main(int argc, char** argv) {
  if (argc != 6) {
    fprintf(stderr, "usage: order PATTERN BATCH LENGTH COUNT FILE\n");
    return 2;
  }
  const size_t batch = atoll(argv[2]), length = atoll(argv[3]), count = atoll(argv[4]), tokens = batch * length;
  if (count * tokens + 1 > INT32_MAX) {
    fprintf(stderr, "order: error: %zu tokens; a shard has at most %d\n", count * tokens + 1, INT32_MAX);
    return 1;
  }
  DataLoader loader;
  dataloader_init(&loader, argv[1], batch, length, 0, 1, 1);
  FILE* file = fopenCheck(argv[5], "wb");
  int header[HEADER_SIZE] = {20240520, 1, (int)(count * tokens + 1)};
  fwriteCheck(header, sizeof(int), HEADER_SIZE, file);
  uint16_t* row = mallocCheck(tokens * sizeof(uint16_t));
  for (size_t i = 0; i < count; ++i) {
    dataloader_next_batch(&loader);
    for (size_t k = 0; k < tokens; ++k) row[k] = (uint16_t)loader.inputs[k];
    fwriteCheck(row, sizeof(uint16_t), tokens, file);
  }
  row[0] = (uint16_t)loader.targets[tokens - 1];
  fwriteCheck(row, sizeof(uint16_t), 1, file);
  fcloseCheck(file);
  free(row);
  dataloader_free(&loader);
  return 0;
}
