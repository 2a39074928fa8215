// What a launcher's environment says of the world.
#include "train/launch/world.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/base/check.h"

namespace tessera::testing {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<World> world_of(const Variables& variables) {
  return world_of_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables with(Variables variables, const Variables& changes) {
  for (const auto& [name, value] : changes) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

void expect_refusal(const Variables& variables, std::initializer_list<const char*> parts) {
  try {
    world_of(variables);
    FAIL() << "no error; wanted: " << *parts.begin();
  } catch (const Error& error) {
    for (const char* part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "wanted: " << part << "\nfound:  " << error.what();
  }
}

void expect_world(const Variables& variables, const World& wanted) {
  const std::optional<World> found = world_of(variables);
  ASSERT_TRUE(found) << wanted.from;
  EXPECT_EQ(found->rank, wanted.rank);
  EXPECT_EQ(found->size, wanted.size);
  EXPECT_EQ(found->local_rank, wanted.local_rank);
  EXPECT_EQ(found->local_size, wanted.local_size);
  EXPECT_EQ(found->master_address, wanted.master_address);
  EXPECT_EQ(found->from, wanted.from);
  EXPECT_EQ(found->listening_fd, wanted.listening_fd);
  if (wanted.master_port != 0) {
    EXPECT_EQ(found->master_port, wanted.master_port);
  }
}

const Variables kTorchrun{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node1"},
                          {"MASTER_PORT", "29500"}};
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "3"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                         {"PMIX_NAMESPACE", "prterun-node1-4711@1"}};
// What sbatch gives its script, and srun, beside it, to the tasks of a step.
const Variables kBatchScript{{"SLURM_JOB_ID", "4711"},
                             {"SLURM_JOB_NODELIST", "node[03-05]"},
                             {"SLURM_NTASKS", "7"},
                             {"SLURM_NTASKS_PER_NODE", "3"},
                             {"SLURM_TASKS_PER_NODE", "3(x2),1"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_NODEID", "0"}};
const Variables kSlurmStep = with(kBatchScript, {{"SLURM_STEP_ID", "0"},
                                                 {"SLURM_STEP_NUM_TASKS", "7"},
                                                 {"SLURM_STEP_NODELIST", "node[03-05]"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "3(x2),1"},
                                                 {"SLURM_PROCID", "4"},
                                                 {"SLURM_LOCALID", "1"},
                                                 {"SLURM_NODEID", "1"}});

TEST(World, NoneWhereNoLauncherIs) {
  EXPECT_FALSE(world_of({}));
  EXPECT_FALSE(world_of({{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}, {"WORLD_SIZE", "1"}}));
}

TEST(World, OfTorchrun) {
  World wanted{.rank = 5,
               .size = 8,
               .local_rank = 1,
               .local_size = 4,
               .master_address = "node1",
               .master_port = 29500,
               .from = "torchrun"};
  expect_world(kTorchrun, wanted);
  expect_world(with(kSlurmStep, kTorchrun), wanted);  // torchrun on every node of a step
  wanted.master_port = 29501;
  expect_world(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), wanted);
}

TEST(World, OfOurLauncher) {
  const Variables own = with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {kLauncherVariable, "1"}});
  expect_world(with(own, {{kListenVariable, "7"}}), {.rank = 0,
                                                     .size = 8,
                                                     .local_rank = 0,
                                                     .local_size = 4,
                                                     .master_address = "node1",
                                                     .master_port = 29500,
                                                     .from = kOwnLauncher,
                                                     .listening_fd = 7});
  expect_refusal(own, {kListenVariable, "not set"});
}

TEST(World, RefusesATorchrunThatIsIncompleteOrWrong) {
  for (const auto& [name, value] : kTorchrun) {
    expect_refusal(without(kTorchrun, name),
                   {name == "RANK" ? "RANK is not set" : name.c_str(), "not set", "torchrun"});
    if (name != "MASTER_ADDR")
      expect_refusal(with(kTorchrun, {{name, "x2"}}), {name.c_str(), "\"x2\"", "integer"});
  }
  expect_refusal(with(kTorchrun, {{"RANK", "8"}}), {"RANK is \"8\"", "0 to 7"});
  expect_refusal(with(kTorchrun, {{"RANK", "-1"}}), {"RANK is \"-1\"", "0 to 7"});
  expect_refusal(with(kTorchrun, {{"LOCAL_RANK", "4"}}), {"LOCAL_RANK is \"4\"", "0 to 3"});
  expect_refusal(with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}), {"LOCAL_WORLD_SIZE is \"9\"", "1 to 8"});
  expect_refusal(with(kTorchrun, {{"RANK", "0"}}), {"LOCAL_RANK is 1", "RANK is only 0"});
  expect_refusal(with(kTorchrun, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT is \"70000\"", "65535"});
  expect_refusal({{"WORLD_SIZE", "8"}}, {"WORLD_SIZE is \"8\"", "RANK is not set", "unset WORLD_SIZE"});
}

TEST(World, OfOpenMpi) {
  expect_world(kOpenMpi, {.rank = 2, .size = 3, .local_rank = 2, .local_size = 3, .from = "Open MPI"});
  const int port = world_of(kOpenMpi)->master_port;
  EXPECT_TRUE(port >= 10000 && port < 30000) << port;
  EXPECT_EQ(world_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}}))->master_port, port);
  EXPECT_NE(world_of(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-node1-4712@1"}}))->master_port, port);
  expect_refusal(without(kOpenMpi, "PMIX_NAMESPACE"), {"MASTER_PORT is not set"});
  expect_refusal(without(kOpenMpi, "OMPI_COMM_WORLD_RANK"), {"OMPI_COMM_WORLD_RANK is not set", "mpirun"});

  const Variables two_machines = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "6"}});
  expect_refusal(two_machines, {"MASTER_ADDR is not set"});
  expect_refusal(with(two_machines, {{"MASTER_ADDR", "node1"}}), {"MASTER_PORT is not set"});
  // mpirun's daemon on another machine runs in a Slurm step of its own.
  expect_world(with(with(kSlurmStep, two_machines), {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}}),
               {.rank = 2,
                .size = 6,
                .local_rank = 2,
                .local_size = 3,
                .master_address = "node1",
                .master_port = 1234,
                .from = "Open MPI"});
}

TEST(World, OfASlurmStep) {
  const World wanted{
      .rank = 4, .size = 7, .local_rank = 1, .local_size = 3, .master_address = "node03", .from = "Slurm"};
  expect_world(kSlurmStep, wanted);
  expect_world(with(kSlurmStep, {{"WORLD_SIZE", "7"}}), wanted);
  const int port = world_of(kSlurmStep)->master_port;
  EXPECT_TRUE(port >= 10000 && port < 30000) << port;
  EXPECT_NE(world_of(with(kSlurmStep, {{"SLURM_STEP_ID", "1"}}))->master_port, port);
  EXPECT_EQ(world_of(with(kSlurmStep, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "2"}, {"SLURM_LOCALID", "0"}}))
                ->local_size,
            1);
  expect_world(with(kSlurmStep, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}),
               {.rank = 4,
                .size = 7,
                .local_rank = 1,
                .local_size = 3,
                .master_address = "10.0.0.1",
                .master_port = 29500,
                .from = "Slurm"});
  for (const auto& [list, host] : {std::pair("node7", "node7"), std::pair("gpu[4,9]", "gpu4"),
                                   std::pair("a-b,c", "a-b"), std::pair("rack[1-2]n[4-5]-ib", "rack1n4-ib")})
    EXPECT_EQ(world_of(with(kSlurmStep, {{"SLURM_STEP_NODELIST", list}}))->master_address, host);
}

TEST(World, SlurmOutsideOfAStepIsNone) {
  EXPECT_FALSE(world_of(kBatchScript));
  EXPECT_FALSE(world_of(without(without(kBatchScript, "SLURM_PROCID"), "SLURM_LOCALID")));  // salloc's shell
  // salloc's shell as an interactive step, and `srun --pty bash`.
  EXPECT_FALSE(world_of(with(kSlurmStep, {{"SLURM_STEP_ID", "4294967290"}})));
  EXPECT_FALSE(world_of(with(kSlurmStep, {{"SLURM_STEP_NUM_TASKS", "1"}})));
}

TEST(World, RefusesASlurmStepThatIsIncompleteOrWrong) {
  for (const char* name :
       {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_JOB_ID"})
    expect_refusal(without(kSlurmStep, name), {name, "is not set", "srun"});
  expect_refusal(with(kSlurmStep, {{"SLURM_PROCID", "7"}}), {"SLURM_PROCID is \"7\"", "0 to 6"});
  expect_refusal(with(kSlurmStep, {{"SLURM_LOCALID", "3"}}), {"SLURM_LOCALID is \"3\"", "0 to 2"});
  expect_refusal(with(kSlurmStep, {{"SLURM_STEP_TASKS_PER_NODE", "3"}}),
                 {"TASKS_PER_NODE is \"3\"", "node 1"});
  expect_refusal(with(kSlurmStep, {{"SLURM_STEP_NODELIST", "node[1"}}), {"NODELIST is \"node[1\""});
  expect_refusal(with(kSlurmStep, {{"WORLD_SIZE", "8"}}), {"WORLD_SIZE is \"8\"", "Slurm started 7 ranks"});
}

TEST(WorldOfEnvironment, TheSecretIsEveryLaunchers) {
  const std::string secret(64, 'a');
  EXPECT_EQ(world_of(kTorchrun)->secret, "");
  EXPECT_EQ(world_of(with(kTorchrun, {{kSecretVariable, secret}}))->secret, secret);
  expect_refusal(with(kTorchrun, {{kSecretVariable, "123"}}),
                 {"TESSERA_SECRET has 3 characters", "must have 16 to 1024", "openssl rand -hex 32"});
  EXPECT_EQ(world_of({{kSecretVariable, secret}}), std::nullopt);
}

TEST(RandomSecret, IsAnotherEachTime) {
  EXPECT_EQ(random_secret().size(), 64u);
  EXPECT_NE(random_secret(), random_secret());
}

}  // namespace
}  // namespace tessera::testing
