// The store of parameters: when leases wait, when gradients are summed over ranks, and what is refused.
#include "model/store/param_store.h"

#include "tests/support.h"
#include "train/session/train_state.h"

namespace tessera::testing {
namespace {

constexpr ModelConfig kTinyStore{.vocab_size = 61, .context = 16, .layers = 3, .heads = 2, .channels = 32};

// Writes down the collectives of rank 1 of 2, and does nothing.
class LoggingCommunicator final : public Communicator {
 public:
  LoggingCommunicator() : Communicator(Device::kCpu, 1, 2) {}
  void wait_for(int64_t count) override {
    if (count > waited_for_) log.push_back(fmt::format("wait for {}", count));
    waited_for_ = std::max(waited_for_, count);
  }

  std::vector<std::string> log;

 private:
  void run(const AllReduce& a) override { log.push_back(fmt::format("reduce {}", a.tensor.numel())); }
  void run(const ReduceScatter& a) override { log.push_back(fmt::format("scatter {}", a.whole.numel())); }
  void run(const AllGather& a) override { log.push_back(fmt::format("gather {}", a.whole.numel())); }
  void run(const AllToAll& a) override { log.push_back(fmt::format("exchange {}", a.sends.size())); }

  int64_t waited_for_ = 0;
};

struct Store : ::testing::Test {
  LoggingCommunicator comm;
  std::unique_ptr<Backend> be = make_plan_backend({});
  Arena arena = Arena::plan(Device::kCpu);
  ParamStore store{
      Stream(*be),
      arena,
      {.model = kTinyStore,
       .homes = {.shards = {Shard::kOptimizer, 2}, .axis = &comm, .training = ParamStore::Training{}}}};
  std::vector<std::string>& log = comm.log;

  int64_t elements(size_t bucket) const { return store.layout().buckets[bucket].trained; }
  static size_t bucket_of(int64_t layer) { return ParamLayout::bucket_of_block(layer); }
};

TEST_F(Store, GradientsAreSummedWhereTheScopesOfTheLastMicroStepEnd) {
  for (const bool last : {false, true}) {
    store.gradient_home().begin_micro_step({.first = !last, .last = last});
    GradientScope<BlockParams> block = store.block_gradients(2);
    {
      const GradientScope<HeadParams> head = store.head_gradients();
      EXPECT_EQ(head->classifier().data, store.gradient_home().whole().token_table.data);
    }
    GradientScope<BlockParams> below = store.block_gradients(1);
    EXPECT_TRUE(log.empty()) << "the head has its gradients in the bucket of the tables";
    block = std::move(below);
    EXPECT_EQ(log.size(), last ? 1u : 0u);
    block = {};
    EXPECT_EQ(log.size(), last ? 2u : 0u);
    store.table_gradients();
  }
  EXPECT_EQ(log, (std::vector{fmt::format("scatter {}", elements(bucket_of(2))),
                              fmt::format("scatter {}", elements(bucket_of(1))),
                              fmt::format("scatter {}", elements(ParamLayout::kTables))}));
}

TEST_F(Store, AScopeThatAnExceptionEndsSumsNothing) {
  store.gradient_home().begin_micro_step({.first = true, .last = true});
  const auto failing = [&] {
    const GradientScope<BlockParams> block = store.block_gradients(0);
    fail("a kernel failed");
  };
  EXPECT_THROW(failing(), Error);
  EXPECT_TRUE(log.empty());
}

TEST_F(Store, GradientsAreCompleteOnceInAMicroStep) {
  EXPECT_THROW(store.block_gradients(0), Error) << "no micro-step has begun";
  store.gradient_home().begin_micro_step({.first = true, .last = false});
  store.block_gradients(0);
  EXPECT_THROW(store.block_gradients(0), Error);
  store.head_gradients(), store.table_gradients();
  EXPECT_THROW(store.table_gradients(), Error);
  store.gradient_home().begin_micro_step({.first = true, .last = false});
  store.block_gradients(0);
}

TEST_F(Store, TheFirstLeaseWaitsForTheGatherOfItsPart) {
  for (size_t b = 0; b < store.layout().buckets.size(); ++b) store.weight_home().end_update(b);
  log.clear();
  store.lease_tables();
  EXPECT_EQ(log, std::vector<std::string>{"wait for 1"});
  for (int again = 0; again < 2; ++again) store.lease_block(1), store.lease_tables(), store.lease_head();
  EXPECT_EQ(log, (std::vector<std::string>{"wait for 1", "wait for 3"}));
  store.weights();
  EXPECT_EQ(log.back(), "wait for 4") << "for all that is under way";
}

TEST_F(Store, WeightsThatAreLeasedAreNotUpdated) {
  store.weight_home().begin_update();
  WeightLease<BlockParams> kept = store.lease_block(0);
  EXPECT_THROW(store.weight_home().begin_update(), Error);
  const WeightLease<BlockParams> moved = std::move(kept);
  EXPECT_THROW(store.weight_home().begin_update(), Error);
  kept = store.lease_block(1);
  { const WeightLease<TableParams> tables = store.lease_tables(); }
  EXPECT_THROW(store.weight_home().begin_update(), Error);
}

// Where weights are split: a block is gathered while the one before it is used, in both directions, and what
// a buffer still holds is not gathered again.
struct SplitStore : ::testing::Test {
  LoggingCommunicator comm;
  std::unique_ptr<Backend> be = make_plan_backend({});
  Arena arena = Arena::plan(Device::kCpu);
  ModelConfig model = [] {
    ModelConfig untied = kTinyStore;
    untied.layers = 4, untied.tied = false;
    return untied;
  }();
  ParamStore store{
      Stream(*be),
      arena,
      {.model = model,
       .homes = {.shards = {Shard::kWeights, 2}, .axis = &comm, .training = ParamStore::Training{}}}};

  std::vector<std::string> take_log() { return std::exchange(comm.log, {}); }
  std::string gathers(size_t bucket) const {
    return fmt::format("gather {}", store.layout().buckets[bucket].elements);
  }
};

TEST_F(SplitStore, GathersOneBlockAhead) {
  using Log = std::vector<std::string>;
  const std::string block = gathers(1), head = gathers(5);
  store.lease_tables();
  EXPECT_EQ(take_log(), (Log{gathers(0), "wait for 1", block}));
  store.lease_block(0);
  EXPECT_EQ(take_log(), (Log{"wait for 2", block}));
  store.lease_block(1);
  EXPECT_EQ(take_log(), (Log{"wait for 3", block}));
  store.lease_block(2);
  EXPECT_EQ(take_log(), (Log{"wait for 4", block}));
  store.lease_block(3);
  EXPECT_EQ(take_log(), (Log{"wait for 5", head}));
  store.lease_head(), store.lease_head();
  EXPECT_EQ(take_log(), (Log{"wait for 6"}));
  store.lease_block(3);
  EXPECT_EQ(take_log(), Log{}) << "both last blocks are there";
  store.lease_block(2);
  EXPECT_EQ(take_log(), (Log{block}));
  store.lease_block(1);
  EXPECT_EQ(take_log(), (Log{"wait for 7", block}));
  store.lease_block(0);
  EXPECT_EQ(take_log(), (Log{"wait for 8"}));
  store.weight_home().begin_update();
  store.lease_tables();
  EXPECT_EQ(take_log(), (Log{gathers(0), "wait for 9", block})) << "an update makes all old";
}

TEST_F(SplitStore, ABufferInUseIsNotGivenAway) {
  const WeightLease<BlockParams> first = store.lease_block(0);
  store.lease_block(1);
  EXPECT_THROW(store.lease_block(2), Error);
  EXPECT_THROW(store.weights(), Error);
}

// A step of several micro-steps, an evaluation, and a step: what is exchanged, and when.
TEST(StoreOfARun, StepsOverlapWhatTheyExchange) {
  LoggingCommunicator comm;
  const std::unique_ptr<Backend> be = make_plan_backend({});
  Arena arena = Arena::plan(Device::kCpu);
  TrainState state(
      *be, arena,
      {.model = kTinyStore, .micro_batch = 1, .micro_steps = 2, .sequence_length = 8, .mesh = {.data = 2}},
      {.all = &comm});
  const auto sized = [&](const char* what, size_t bucket) {
    return fmt::format("{} {}", what, state.store().layout().buckets[bucket].trained);
  };
  comm.log.clear();
  state.walk_step(2);
  const std::vector<std::string> step{sized("scatter", 3), sized("scatter", 2), sized("scatter", 1),
                                      sized("scatter", 0), "wait for 4",        "gather 2",  // norms
                                      "wait for 5",        "gather 2",                       // losses
                                      "wait for 6",        sized("gather", 0),  sized("gather", 1),
                                      sized("gather", 2),  sized("gather", 3)};
  EXPECT_EQ(comm.log, step);
  comm.log.clear();
  state.session().evaluate({}, 1);
  EXPECT_EQ(comm.log, (std::vector<std::string>{"wait for 7", "wait for 8", "wait for 9", "wait for 10"}));
  comm.log.clear();
  state.walk_step(2);
  EXPECT_EQ(comm.log.front(), sized("scatter", 3)) << "the evaluation has the weights already";
}

}  // namespace
}  // namespace tessera::testing
