// Which rank of a run this process is, as a launcher's environment says.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace tessera {

// What our own launcher (launcher.h) sets beside torchrun's variables.
inline constexpr const char* kLauncherVariable = "TESSERA_LAUNCHER";  // "1" in every rank
inline constexpr const char* kListenVariable = "TESSERA_LISTEN_FD";  // rank 0's socket, which already listens
inline constexpr const char* kSecretVariable = "TESSERA_SECRET";     // see World::secret
inline constexpr const char* kOwnLauncher = "Tessera";               // World::from under it

// A run of `size` processes, the ranks 0 to size - 1, of which `local_size` are on this machine.
struct World {
  int rank = 0, size = 1, local_rank = 0, local_size = 1;
  std::string master_address = "127.0.0.1";  // of rank 0's machine: a name or an IP address
  int master_port = 0;                       // TCP, where rank 0 listens for the others
  std::string from;       // the launcher: kOwnLauncher, "torchrun", "Open MPI", "Slurm" or ""
  int listening_fd = -1;  // rank 0 under our own launcher: a socket that listens at the port
  // The same on all ranks. Rank 0 ignores connections without it. Empty: no secret is required.
  std::string secret = {};

  bool own_launcher() const { return from == kOwnLauncher; }
};

using Environment = std::function<std::optional<std::string>(const std::string& variable)>;

// The world that a launcher describes, or none. The first of these that is set counts:
//   torchrun   RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Our launcher sets
//              these, too. If torchrun itself listens at MASTER_PORT, the rendezvous is at the next port.
//   Open MPI   OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE. The master is MASTER_ADDR and
//              MASTER_PORT; on one machine they may be missing.
//   Slurm      the step that srun started: SLURM_STEP_NUM_TASKS, SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID,
//              SLURM_STEP_TASKS_PER_NODE. The master is the step's first node and a port derived from the
//              job's number, or MASTER_ADDR and MASTER_PORT. The shell of salloc, the script of sbatch and a
//              step of one task are not a world, because no other ranks were started there.
// TESSERA_SECRET works with every launcher: our launcher sets it to random bytes; with others the user may
// set it. Error: a variable is missing, is not a number, or contradicts another.
std::optional<World> world_of_environment(const Environment& environment);

// The same, from this process's environment. It erases the secret there, so that neither child processes nor
// /proc show it. A second call finds no secret.
std::optional<World> world_of_environment();

// A new secret: 32 random bytes, in hexadecimal.
std::string random_secret();

}  // namespace tessera
