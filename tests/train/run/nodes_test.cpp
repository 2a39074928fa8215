// Two machines of two ranks each on one: network namespaces with a link between them, host names and working
// folders of their own. They need root; where there is none these tests skip.
#include <map>

#include "tests/ranks_by_hand.h"

namespace tessera::testing {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 4;

struct RanksOfTwoNamespaces : TrainRanks {
  void SetUp() override {
    TrainRanks::SetUp();
    if (IsSkipped()) return;
    // fabric0 joins them; docker0 has the same address on both; apart0 has two subnets without a way between.
    const std::string made = shell(
        "set -e; ip netns add $0; ip netns add $1; ip -n $0 link add fabric0 type veth peer name fabric0 "
        "netns $1;"
        "for n in $0 $1; do ip -n $n link set lo up; ip -n $n link set fabric0 up;"
        "  for i in docker0 apart0; do ip -n $n link add $i type veth peer name peer_$i;"
        "    ip -n $n link set $i up; ip -n $n link set peer_$i up; done;"
        "  ip -n $n addr add 172.17.0.1/16 dev docker0; done;"
        "ip -n $0 addr add 10.77.0.1/24 dev fabric0; ip -n $1 addr add 10.77.0.2/24 dev fabric0;"
        "ip -n $0 addr add 10.88.1.1/24 dev apart0; ip -n $1 addr add 10.88.2.1/24 dev apart0;"
        "ip netns exec $1 unshare --uts true");
    if (!made.empty()) GTEST_SKIP() << "there are no network namespaces here: " << made;
    for (const char* machine : {"a", "b"}) {
      fs::create_directory(folder / machine);
      for (const char* file : {"text.txt", "small.yaml"})
        fs::copy_file(folder / file, folder / machine / file);
    }
  }
  void TearDown() override { shell("ip netns del $0; ip netns del $1"); }

  // What a line of bash says of its failure; "" where it works. $0 and $1 are the namespaces.
  std::string shell(const std::string& line) const {
    const ProcessResult result = run_shell(line, {names[0], names[1]}, {.folder = folder});
    return result.status == 0 ? "" : "status " + std::to_string(result.status) + ": " + result.error;
  }

  // `command` on machine 0 or 1, with environment variables in front
  void start_on(int machine, const Words& command) {
    const std::string own = "process_" + std::to_string(processes.size());
    fs::create_directories(folder / own);
    const std::string host = machine == 0 ? "node-a" : "node-b";
    processes.emplace_back(
        "/bin/bash",
        with({"-c", "exec ip netns exec $0 unshare --uts bash -c 'hostname $0; exec env \"$@\"' \"$@\"",
              names[machine], host, "-C", (folder / (machine == 0 ? "a" : "b")).string()},
             command),
        Process::Options{.folder = folder / own});
  }
  std::vector<ProcessResult> end() {
    std::vector<ProcessResult> results;
    for (Process& process : processes) results.push_back(process.finish());
    processes.clear();
    return results;
  }

  // The variables that a launcher sets for a rank
  Words variables(const std::string& launcher, int rank) const {
    const std::string all = std::to_string(kRanks), own = std::to_string(rank),
                      local = std::to_string(rank % 2), machine = std::to_string(rank / 2);
    const Words master{"MASTER_ADDR=10.77.0.1", "MASTER_PORT=" + std::to_string(port)};
    const std::map<std::string, Words> of{
        {"torchrun", {"RANK=" + own, "WORLD_SIZE=" + all, "LOCAL_RANK=" + local, "LOCAL_WORLD_SIZE=2"}},
        {"srun",
         {"SLURM_JOB_ID=1", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_TASKS=" + all, "SLURM_PROCID=" + own,
          "SLURM_LOCALID=" + local, "SLURM_NODEID=" + machine, "SLURM_STEP_TASKS_PER_NODE=2(x2)",
          "SLURM_STEP_NODELIST=node-[a-b]"}},
        {"mpirun",
         {"OMPI_COMM_WORLD_RANK=" + own, "OMPI_COMM_WORLD_SIZE=" + all, "OMPI_COMM_WORLD_LOCAL_RANK=" + local,
          "OMPI_COMM_WORLD_LOCAL_SIZE=2"}}};
    return with(of.at(launcher), master);
  }
  static Words command(const Words& words) {
    return with(with({TRAIN_BINARY, "--config", "small.yaml"},
                     sets({"evaluation.every=0", "sampling.every=0", "optimizer.schedule=constant"})),
                words);
  }
  void start_all(const std::string& launcher, const Words& more, const Words& words) {
    for (int rank = kRanks - 1; rank >= 0; --rank)
      start_on(rank / 2, with(with(variables(launcher, rank), more), command(words)));
  }
  // The same by docs/examples/node_ranks.sh, as often as `times` where it fails
  void start_by_script(const Words& words, int times = 1) {
    const std::string script = std::string(TESSERA_SOURCE_DIR) + "/docs/examples/node_ranks.sh";
    for (const int machine : {1, 0})
      start_on(machine,
               with({"NODES=2", "RANKS_PER_NODE=2", "JOB_COMPLETION_INDEX=" + std::to_string(machine),
                     "MASTER_ADDR=10.77.0.1", "MASTER_PORT=" + std::to_string(port), "/bin/bash", "-c",
                     "for i in $(seq " + std::to_string(times) + "); do bash \"$@\" && exit 0; done; exit 1",
                     "bash", script},
                    command(words)));
  }

  // One for each test of this process
  const std::string id = std::to_string(getpid());
  const std::string names[2] = {"tessera_a_" + id, "tessera_b_" + id};
  int port = 29500;
  std::vector<Process> processes;
};

TEST_F(RanksOfTwoNamespaces, AreStartedByEachLauncher) {
  trains(with(by(1, "one"), sets({"train.steps=2", "evaluation.every=0", "sampling.every=0",
                                  "optimizer.schedule=constant"})));
  const std::vector<double> expected = values("one", "loss");
  for (const std::string launcher : {"torchrun", "srun", "mpirun", "node_ranks.sh"}) {
    SCOPED_TRACE(launcher);
    const Words words{"--overwrite", "--set", "train.steps=2"};
    launcher == "node_ranks.sh" ? start_by_script(words) : start_all(launcher, {}, words);
    std::string out;
    for (const ProcessResult& result : end()) {
      EXPECT_EQ(result.status, 0) << result.out << result.error;
      out += result.out;
    }
    EXPECT_NE(out.find("node-a by fabric0 (10.77.0.1), node-b by fabric0 (10.77.0.2)"), std::string::npos)
        << out;
    const std::vector<double> found = values("a/out", "loss");
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-4 * expected[i]);
  }
}

TEST_F(RanksOfTwoNamespaces, RefuseAnInterfaceThatLeadsNowhere) {
  const std::map<std::string, Words> wrong{
      {"lo", {"GLOO_SOCKET_IFNAME=lo", "loopback", "fabric0 (10.77.0."}},
      {"docker0", {"by docker0 (172.17.0.1/16) does not reach ", "GLOO_SOCKET_IFNAME", "fabric0 (10.77.0."}},
      {"apart0", {"by apart0 (10.88.", "does not reach ", "GLOO_SOCKET_IFNAME", "fabric0 (10.77.0."}},
      {"eth9", {"GLOO_SOCKET_IFNAME=eth9", "names no interface of node-", "fabric0 (10.77.0."}}};
  for (const auto& [interface, parts] : wrong) {
    SCOPED_TRACE(interface);
    start_all("torchrun", {"GLOO_SOCKET_IFNAME=" + interface}, {"--set", "train.steps=2"});
    std::string errors;
    for (const ProcessResult& result : end()) {
      EXPECT_TRUE(result.status == 1 || result.status == 3) << result.status;
      errors += result.error;
    }
    expect_one_message(errors, parts);
  }
  EXPECT_FALSE(fs::exists(folder / "a/out/checkpoints"));
}

// The link breaks: both machines say so, and all ranks end within the time limit and some seconds. A launcher
// that starts them again, after the link is back, continues from the newest checkpoint.
TEST_F(RanksOfTwoNamespaces, EndAndGoOnWhenTheLinkBreaks) {
  const Words words{"--resume", "auto", "--set", "train.steps=40", "--set", "checkpoint.every=5"};
  start_by_script(with(words, sets({"train.steps=100000"})));
  wait_for_steps("a/out", 12);
  EXPECT_EQ(shell("ip -n $1 link set fabric0 down"), "");
  const Clock::time_point down = Clock::now();
  const std::vector<ProcessResult> results = end();
  const double seconds = std::chrono::duration<double>(Clock::now() - down).count();
  EXPECT_LT(seconds, 3 + 9) << "train.time_limit is 3 s";
  RecordProperty("seconds_until_all_are_gone", std::to_string(seconds));
  for (const ProcessResult& result : results) {
    EXPECT_NE(result.status, 0);
    EXPECT_NE(result.error.find("has not answered for 3 s"), std::string::npos) << result.error;
  }
  const int newest = checkpoints("a/out").back();
  EXPECT_EQ(checkpoints("b/out").back(), newest);
  start_by_script(with(words, sets({"train.steps=" + std::to_string(newest + 10)})), /*times=*/20);
  std::this_thread::sleep_for(std::chrono::seconds(2));  // the first try does not find the other machine
  EXPECT_EQ(shell("ip -n $1 link set fabric0 up"), "");
  for (const ProcessResult& result : end()) EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(checkpoints("b/out").back(), newest + 10);
}

// Shorter than the time limit: the run goes on as if nothing had been.
TEST_F(RanksOfTwoNamespaces, OutliveALinkThatStopsForAWhile) {
  start_all("torchrun", {}, sets({"train.steps=100000", "checkpoint.every=0", "train.time_limit=20"}));
  wait_for_steps("a/out", 5);
  EXPECT_EQ(shell("ip -n $1 link set fabric0 down; sleep 4; ip -n $1 link set fabric0 up"), "");
  wait_for_steps("a/out", values("a/out", "loss").size() + 5);
  processes.back().signal(SIGTERM);  // rank 0
  for (const ProcessResult& result : end()) EXPECT_EQ(result.status, 0) << result.error;
}

// One packet in a hundred is lost on the way to each machine. The bits are those of a whole link, as TCP
// sends again what was lost.
TEST_F(RanksOfTwoNamespaces, ALinkThatLosesOnePercentChangesNoBit) {
  if (const std::string none = shell("nft --version"); !none.empty()) GTEST_SKIP() << "no nft: " << none;
  const auto losses_of_run = [&] {
    start_all("torchrun", {},
              with({"--overwrite"}, sets({"train.steps=30", "train.time_limit=20", "parallel.replicas=1"})));
    for (const ProcessResult& result : end()) EXPECT_EQ(result.status, 0) << result.error;
    return losses("a/out");
  };
  const std::vector<std::string> whole = losses_of_run();
  const std::string lossy = shell(
      "set -e; for n in $0 $1; do ip netns exec $n nft -f - <<< 'table inet lossy { chain in { type filter "
      "hook input priority 0; iifname fabric0 numgen random mod 100 < 1 counter drop; }; }'; done");
  if (!lossy.empty()) GTEST_SKIP() << "this kernel drops no packets at random: " << lossy;
  EXPECT_EQ(losses_of_run(), whole);
  EXPECT_EQ(shell("for n in $0 $1; do ip netns exec $n nft list ruleset; done | grep -q 'packets [1-9]'"), "")
      << "no packet was lost";
}

// A rank that stands still again and again, for less than the time limit: all go at its pace.
TEST_F(RanksOfTwoNamespaces, GoAtThePaceOfASlowRank) {
  const Words words =
      with({"--overwrite"}, sets({"train.steps=20", "train.time_limit=10", "parallel.replicas=1"}));
  start_all("torchrun", {}, words);
  end();
  const std::vector<std::string> expected = losses("a/out");
  EXPECT_EQ(values("a/out", "loss").size(), 20u);
  start_all("torchrun", {}, words);
  for (int i = 0; i < 20; ++i) {
    processes.front().signal(SIGSTOP);  // rank 3
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    processes.front().signal(SIGCONT);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  for (const ProcessResult& result : end()) EXPECT_EQ(result.status, 0) << result.error;
  EXPECT_EQ(losses("a/out"), expected);
}

}  // namespace
}  // namespace tessera::testing
