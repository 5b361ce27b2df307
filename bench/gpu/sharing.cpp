// Memory that another process opens: it finds this process's writes, and its own are found here.
#include <cuda_runtime_api.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/gpu/child.h"
#include "bench/gpu/cuda_calls.h"
#include "bench/gpu/report.h"
#include "cachalot/caching_allocator.h"

namespace cachalot::gpu {
namespace {

constexpr Word kOurs = 1'000;
constexpr Word kTheirs = 5'000'000;

[[noreturn]] void fail(const char* call) { throw std::runtime_error(std::string(call) + ": " + std::strerror(errno)); }

// One message on a socket, with a file descriptor unless that is -1.
void send(int socket, const void* bytes, std::size_t count, int descriptor) {
  iovec part = {const_cast<void*>(bytes), count};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  if (sendmsg(socket, &message, 0) != static_cast<ssize_t>(count)) fail("sendmsg");
}

// Returns the descriptor that came with it, or -1.
int receive(int socket, void* bytes, std::size_t count) {
  iovec part = {bytes, count};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(socket, &message, MSG_WAITALL) != static_cast<ssize_t>(count)) fail("recvmsg");
  int descriptor = -1;
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&message)) std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

struct Announcement {
  std::size_t handles;
  IpcHandle segment;
  std::size_t offset;
  std::size_t bytes;
};

void send_shared(int socket, const SharedMemory& memory) {
  const Announcement announcement = {memory.handles.size(), memory.segment, memory.offset, memory.bytes};
  send(socket, &announcement, sizeof(announcement), -1);
  for (const SharedMemory::Handle& handle : memory.handles)
    send(socket, &handle, sizeof(handle), handle.shared.descriptor);
}

SharedMemory receive_shared(int socket) {
  Announcement announcement = {};
  receive(socket, &announcement, sizeof(announcement));
  SharedMemory memory;
  memory.segment = announcement.segment;
  memory.offset = announcement.offset;
  memory.bytes = announcement.bytes;
  for (std::size_t i = 0; i < announcement.handles; ++i) {
    SharedMemory::Handle handle;
    handle.shared.descriptor = receive(socket, &handle, sizeof(handle));
    memory.handles.push_back(handle);
  }
  return memory;
}

// In the child: `heap`, and the socket's number.
int open_memory(const std::vector<std::string>& arguments) {
  const int socket = std::stoi(arguments.at(1));
  SharedMemory memory = receive_shared(socket);
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:" + arguments.at(0)));
  void* const base = allocator.open_shared(memory);
  const OwnStream stream;
  const WrongWords wrong;
  const Words words = words_at(static_cast<char*>(base) + memory.offset, memory.bytes);
  check(stream, words, kOurs, wrong.on_device());
  const std::uint64_t wrong_words = wrong.read();
  fill(stream, words, kTheirs);
  stream.synchronize();
  allocator.close_shared(base);
  for (const SharedMemory::Handle& handle : memory.handles) {
    if (handle.shared.descriptor >= 0) close(handle.shared.descriptor);
  }
  std::printf("%zu handles, %llu wrong words\n", memory.handles.size(), static_cast<unsigned long long>(wrong_words));
  return wrong_words == 0 ? 0 : 3;
}

// The memory lies in several handles, between others' memory, unless it is contiguous.
void share(const std::string& heap, const std::string& opener, bool is_contiguous) {
  const std::string name = "sharing/" + heap + " to " + opener + (is_contiguous ? ", contiguous" : "");
  CachingAllocator allocator({cuda_devices().at(0)}, parse_options("heap:" + heap));
  const OwnStream stream;
  const WrongWords wrong;
  void* const neighbour = allocator.allocate(3 * kMiB, 0, stream);
  const std::size_t bytes = 96 * kMiB;
  void* const memory = allocator.allocate(bytes, 0, stream, {.contiguous = is_contiguous});
  fill(stream, words_at(neighbour, 3 * kMiB), 1);
  fill(stream, words_at(memory, bytes), kOurs);
  stream.synchronize();
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) fail("socketpair");
  Child child({"open", opener, std::to_string(ends[1])}, ends[1]);
  close(ends[1]);
  const SharedMemory shared = is_contiguous ? allocator.share_contiguous(memory) : allocator.share(memory);
  send_shared(ends[0], shared);
  const ChildEnd end = child.wait();
  close(ends[0]);
  check(name + "/opened", end.exit_code == 0 || end.exit_code == 3, end.text());
  if (is_simulated()) return not_applicable(name + "/content", kSimulated);
  check(stream, words_at(memory, bytes), kTheirs, wrong.on_device());
  check(stream, words_at(neighbour, 3 * kMiB), 1, wrong.on_device());
  check_content(name + "/content", wrong.read() + (end.exit_code == 3), "those of the other process are one");
}

void share_memory(const Effort&) {
  for (const char* heap : {"segments", "pages"}) {
    for (const char* opener : {"segments", "pages"}) {
      for (const bool is_contiguous : {false, true}) {
        try {
          share(heap, opener, is_contiguous);
        } catch (const std::exception& error) {
          check(std::string("sharing/") + heap + " to " + opener, false, error.what());
        }
      }
    }
  }
}

}  // namespace
}  // namespace cachalot::gpu

int main(int argc, char** argv) {
  using namespace cachalot::gpu;
  return parts_main(argc, argv, {{"sharing", share_memory}}, {{"open", open_memory}});
}
