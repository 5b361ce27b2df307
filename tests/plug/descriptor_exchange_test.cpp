// The descriptors of shared memory, which this process hands to itself and to children that are of other users, ask for
// other memory, or ask badly.
#include <dirent.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "pytorch/plug/hooks.h"
#include "pytorch/plug/plug.h"

namespace cachalot {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::uint32_t kHere = 1, kGone = 2;  // the answers, as the protocol has them

std::size_t open_files() {
  DIR* const folder = opendir("/proc/self/fd");
  std::size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int connect_to(std::uint64_t number) {
  const std::string text = fmt::format("cachalot-{}", number);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  text.copy(name.sun_path + 1, sizeof(name.sun_path) - 1);
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  const int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (connect(connection, reinterpret_cast<const sockaddr*>(&name), bytes) == 0) return connection;
  close(connection);
  return -1;
}

// Returns the answer to a packet of these bytes; 0 if the connection is closed without one.
std::uint32_t answer(std::uint64_t number, const void* packet, std::size_t bytes) {
  const int connection = connect_to(number);
  EXPECT_GE(connection, 0);
  send(connection, packet, bytes, MSG_NOSIGNAL);
  std::uint32_t reply = 0;
  if (recv(connection, &reply, sizeof(reply), 0) <= 0) reply = 0;
  close(connection);
  return reply;
}

template <typename Action>
int status_of_child(Action action) {
  const pid_t child = fork();
  if (child == 0) _exit(action());
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class DescriptorServing : public testing::Test {
 protected:
  void SetUp() override {
    ptr_ = plug_.allocate(8 * kMiB, 0, nullptr);
    memory_ = plug_.share(ptr_);
    if (memory_.handles.empty()) GTEST_SKIP() << "a segment has no descriptor";
    socket_ = plug_.descriptor_socket();
    ASSERT_NE(socket_, 0u);
  }
  void TearDown() override {
    if (ptr_ != nullptr) plug_.deallocate(ptr_);
    cachalot_reset();
  }
  std::string refusal(const SharedMemory& memory, const Plug::Sender& sender) {
    try {
      plug_.close_shared(plug_.open_sent(memory, sender, 0));
      return "";
    } catch (const InvalidArgument& error) {
      return error.what();
    }
  }

  Plug& plug_ = *cachalot_plug(kPlugVersion);
  void* ptr_ = nullptr;
  SharedMemory memory_;
  std::uint64_t socket_ = 0;
};

// No process has the number 0, so that the socket alone can bring them.
TEST_F(DescriptorServing, NeedsNoRightOverTheProcess) {
  const std::size_t files = open_files();
  void* const opened = plug_.open_sent(memory_, {.process = 0, .socket = socket_}, 0);
  // The thread that serves closes its own descriptors once it has answered.
  const auto latest = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (open_files() != files && std::chrono::steady_clock::now() < latest) std::this_thread::yield();
  EXPECT_EQ(open_files(), files);
  plug_.close_shared(opened);
  EXPECT_EQ(plug_.descriptor_socket(), socket_);
}

TEST_F(DescriptorServing, IsOfMemoryThatIsStillThere) {
  plug_.deallocate(ptr_);
  ptr_ = nullptr;
  cachalot_reset();
  EXPECT_NE(refusal(memory_, {.process = getpid(), .socket = socket_}).find("has given up the CUDA memory"),
            std::string::npos);
}

TEST_F(DescriptorServing, FailsWithBothReasons) {
  const std::string no_socket = refusal(memory_, {.process = 0, .socket = 0});
  EXPECT_NE(no_socket.find("named no socket"), std::string::npos) << no_socket;
  EXPECT_NE(no_socket.find("pidfd_open of process 0: Invalid argument"), std::string::npos) << no_socket;
  const std::string wrong = refusal(memory_, {.process = 0, .socket = 7});
  EXPECT_NE(wrong.find("connect to its socket @cachalot-7: Connection refused"), std::string::npos) << wrong;
}

TEST_F(DescriptorServing, FallsBackToPidfdWithoutASocket) {
  EXPECT_EQ(refusal(memory_, {.process = getpid(), .socket = 0}), "");
  EXPECT_EQ(refusal(memory_, {.process = getpid(), .socket = 7}), "");
}

TEST_F(DescriptorServing, AnswersOnlyKeysThatItGave) {
  const std::uint64_t key = memory_.handles[0].key;
  EXPECT_NE(key, 0u);
  EXPECT_EQ(answer(socket_, &key, sizeof(key)), kHere);
  const std::uint64_t guessed = key + 1;
  EXPECT_EQ(answer(socket_, &guessed, sizeof(guessed)), kGone);
  EXPECT_EQ(answer(socket_, &key, 7), 0u);
  EXPECT_EQ(answer(socket_, &key, 0), 0u);
  const std::vector<std::uint64_t> many(254, key);
  EXPECT_EQ(answer(socket_, many.data(), many.size() * sizeof(key)), 0u);
  EXPECT_EQ(answer(socket_, many.data(), 253 * sizeof(key)), kHere);
  const int silent = connect_to(socket_);  // delays the next, and does not stop it
  EXPECT_EQ(answer(socket_, &key, sizeof(key)), kHere);
  close(silent);
}

TEST_F(DescriptorServing, RefusesOtherUsers) {
  const int status = status_of_child([&] {
    if (setresuid(4321, 4321, 4321) != 0) return 77;
    const std::uint64_t key = memory_.handles[0].key;
    return static_cast<int>(answer(socket_, &key, sizeof(key)));
  });
  if (status == 77) GTEST_SKIP() << "this process may not become another user";
  EXPECT_EQ(status, 0);
}

TEST_F(DescriptorServing, IsAnothersInAForkedChild) {
  const int status = status_of_child([&] {
    const std::uint64_t key = memory_.handles[0].key;
    const std::uint64_t own = plug_.descriptor_socket();
    if (own == 0 || own == socket_) return 1;
    if (answer(own, &key, sizeof(key)) != kGone) return 2;  // the parent's exports are not the child's
    return answer(socket_, &key, sizeof(key)) == kHere ? 0 : 3;
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(refusal(memory_, {.process = 0, .socket = socket_}), "");
}

}  // namespace
}  // namespace cachalot
