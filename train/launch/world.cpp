#include "train/launch/world.h"

#include <sys/random.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/present.h"
#include "kernels/base/system_error.h"

namespace tessera {
namespace {

// One launcher's variables; errors name the launcher.
struct Variables {
  const Environment& environment;
  const char* launcher;
  const char* advice;  // how to set the variables right

  std::string text(const char* name) const {
    const std::optional<std::string> value = environment(name);
    check(value && !value->empty(), "{}'s environment is incomplete: {} is not set. {}", launcher, name,
          advice);
    return present(value);
  }

  // An integer from `least` to `most`.
  int number(const char* name, int least, int most, const std::string& range) const {
    const std::string value = text(name);
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    check(error == std::errc() && end == value.data() + value.size() && result >= least && result <= most,
          "{}'s environment is wrong: {} is \"{}\", but must be {}. {}", launcher, name, value, range,
          advice);
    return result;
  }
  int count(const char* name, int most) const {
    return number(name, 1, most, fmt::format("an integer from 1 to {}", most));
  }
  int below(const char* name, int size) const {
    return number(name, 0, size - 1,
                  fmt::format("an integer from 0 to {}, below the number of ranks", size - 1));
  }

  bool has(const char* name) const { return environment(name).has_value(); }

  World world(const char* rank, const char* size, const char* local_rank, const char* local_size) const {
    World world{.from = launcher};
    world.size = count(size, kMostRanks);
    world.rank = below(rank, world.size);
    world.local_size = count(local_size, world.size);
    world.local_rank = below(local_rank, world.local_size);
    return world;
  }

  // MASTER_ADDR and MASTER_PORT, where they are set.
  void take_master(World& world) const {
    if (has("MASTER_ADDR")) world.master_address = text("MASTER_ADDR");
    if (has("MASTER_PORT")) world.master_port = count("MASTER_PORT", kMostPort);
  }

  static constexpr int kMostRanks = 1 << 20, kMostPort = 65535;
};

// A port for the job, below the range that systems use for outgoing connections.
int port_of_job(std::string_view job) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char letter : job) hash = (hash ^ static_cast<unsigned char>(letter)) * 16777619u;
  return 10000 + static_cast<int>(hash % 20000);
}

World torchrun_world(const Environment& environment) {
  const bool own = environment(kLauncherVariable).has_value();
  const Variables variables{
      environment, own ? kOwnLauncher : "torchrun",
      "Start the ranks with torchrun, or set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
      "MASTER_PORT for each; for a run of one process, unset them"};
  World world = variables.world("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
  world.master_address = variables.text("MASTER_ADDR");
  world.master_port = variables.count("MASTER_PORT", Variables::kMostPort);
  check(world.local_rank <= world.rank,
        "torchrun's environment is wrong: LOCAL_RANK is {}, but RANK is only {}. {}", world.local_rank,
        world.rank, variables.advice);
  // torchrun's agent serves its own store at MASTER_PORT.
  if (environment("TORCHELASTIC_USE_AGENT_STORE") == "True")
    world.master_port += world.master_port < Variables::kMostPort ? 1 : -1;
  if (own && world.rank == 0)
    world.listening_fd = variables.number(kListenVariable, 3, 1 << 20, "a descriptor");
  return world;
}

World open_mpi_world(const Environment& environment) {
  const Variables variables{environment, "Open MPI", "Start the ranks with Open MPI's mpirun"};
  World world = variables.world("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                "OMPI_COMM_WORLD_LOCAL_SIZE");
  for (const char* job : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (const auto name = environment(job); name && world.master_port == 0)
      world.master_port = port_of_job(*name);
  variables.take_master(world);
  if (world.local_size != world.size) variables.text("MASTER_ADDR");
  if (world.local_size != world.size || world.master_port == 0) variables.text("MASTER_PORT");
  return world;
}

// "node[03-05,9],login" -> "node03"; "rack[1-2]n[4-5]" -> "rack1n4".
std::string first_host(std::string_view list) {
  std::string host;
  for (size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const size_t end = list.find_first_of("-,]", at), closing = list.find(']', at);
    if (closing == std::string_view::npos) return {};
    host += list.substr(at + 1, end - at - 1);
    at = closing;
  }
  return host;
}

// The tasks on node number `node`: "2(x3),1" means 2, 2, 2, 1. 0: the text does not say.
int tasks_on_node(std::string_view text, int node) {
  while (!text.empty()) {
    const std::string_view entry = text.substr(0, text.find(','));
    int tasks = 0, nodes = 1;
    const auto [after, error] = std::from_chars(entry.data(), entry.data() + entry.size(), tasks);
    if (error != std::errc() || tasks < 1) return 0;
    if (const size_t times = entry.find("(x"); times != std::string_view::npos)
      std::from_chars(entry.data() + times + 2, entry.data() + entry.size(), nodes);
    if (node < nodes) return tasks;
    node -= nodes;
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
  }
  return 0;
}

// The batch script has a SLURM_PROCID of 0 and the job's SLURM_NTASKS, but no step; the shell of salloc has
// no step, or the interactive one, whose number is among the highest of 32 bits.
bool in_slurm_step(const Environment& environment) {
  constexpr uint64_t kFirstSpecialStep = 0xfffffff0u;
  const std::optional<std::string> step = environment("SLURM_STEP_ID"),
                                   tasks = environment("SLURM_STEP_NUM_TASKS");
  if (!step || !tasks || !environment("SLURM_PROCID") || *tasks == "1") return false;
  return std::strtoull(step->c_str(), nullptr, 10) < kFirstSpecialStep;
}

World slurm_world(const Environment& environment) {
  const Variables variables{
      environment, "Slurm",
      "Start the ranks with srun, as in `srun --ntasks=8 --ntasks-per-node=4 ./train ...`"};
  World world{.from = "Slurm"};
  world.size = variables.count("SLURM_STEP_NUM_TASKS", Variables::kMostRanks);
  world.rank = variables.below("SLURM_PROCID", world.size);
  const int node = variables.below("SLURM_NODEID", world.size);
  const std::string tasks = variables.text("SLURM_STEP_TASKS_PER_NODE");
  world.local_size = tasks_on_node(tasks, node);
  check(world.local_size >= 1 && world.local_size <= world.size,
        "Slurm's environment is wrong: SLURM_STEP_TASKS_PER_NODE is \"{}\", which does not say how many of "
        "the {} tasks are on node {}. {}",
        tasks, world.size, node, variables.advice);
  world.local_rank = variables.below("SLURM_LOCALID", world.local_size);
  const std::string nodes = variables.text("SLURM_STEP_NODELIST");
  world.master_address = first_host(nodes);
  check(!world.master_address.empty(),
        "Slurm's environment is wrong: SLURM_STEP_NODELIST is \"{}\", which is not a list of nodes. {}",
        nodes, variables.advice);
  world.master_port = port_of_job(variables.text("SLURM_JOB_ID") + "." + variables.text("SLURM_STEP_ID"));
  variables.take_master(world);
  return world;
}

constexpr size_t kLeastSecret = 16, kMostSecret = 1024;  // characters

std::optional<World> world_of_launcher(const Environment& environment) {
  if (environment("RANK") || environment("LOCAL_RANK")) return torchrun_world(environment);
  std::optional<World> world;
  // Open MPI's daemons on other machines are a Slurm step themselves, and pass on its variables.
  if (environment("OMPI_COMM_WORLD_RANK") || environment("OMPI_COMM_WORLD_SIZE"))
    world = open_mpi_world(environment);
  else if (in_slurm_step(environment))
    world = slurm_world(environment);
  // Scripts set WORLD_SIZE for other programs; if it is set, it must be this run's size.
  const std::string size = environment("WORLD_SIZE").value_or("");
  check(size.empty() || size == std::to_string(world ? world->size : 1),
        "WORLD_SIZE is \"{}\", but {}. Start the ranks with torchrun, srun or mpirun, or unset WORLD_SIZE",
        size, world ? fmt::format("{} started {} ranks", world->from, world->size) : "RANK is not set");
  return world;
}

void erase_secret() {
  // /proc/PID/environ shows the memory that the process was started with, even after unsetenv().
  if (char* value = std::getenv(kSecretVariable)) explicit_bzero(value, std::strlen(value));
  unsetenv(kSecretVariable);
}

}  // namespace

std::optional<World> world_of_environment(const Environment& environment) {
  std::optional<World> world = world_of_launcher(environment);
  if (!world) return world;
  world->secret = environment(kSecretVariable).value_or("");
  const size_t length = world->secret.size();
  check(length == 0 || (length >= kLeastSecret && length <= kMostSecret),
        "{} has {} characters; it must have {} to {}. Set the same for all ranks, for example the output of "
        "`openssl rand -hex 32`, or unset it",
        kSecretVariable, length, kLeastSecret, kMostSecret);
  return world;
}

std::optional<World> world_of_environment() {
  const std::optional<World> world =
      world_of_environment([](const std::string& variable) -> std::optional<std::string> {
        const char* value = std::getenv(variable.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      });
  erase_secret();
  return world;
}

std::string random_secret() {
  uint8_t bytes[32];
  check_system(getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "cannot read random bytes for {}: {}",
               kSecretVariable);
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace tessera
