#include "tools/live/sample_formats.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <regex>
#include <sstream>

#include "tests/top/testing.h"
#include "tools/base/output_file.h"
#include "tools/live/prometheus_server.h"

namespace cachalot::tools::live {
namespace {

TEST(Prometheus, MetricsHaveHelpTypeAndLabels) {
  const std::string text = to_prometheus(sample_at(1000, 3 * kGiB, 4 * kGiB));
  EXPECT_NE(
      text.find("# HELP cachalot_reserved_bytes Memory held from the device.\n# TYPE cachalot_reserved_bytes gauge\n"),
      std::string::npos);
  EXPECT_NE(
      text.find(
          "cachalot_reserved_bytes{pid=\"4711\",page=\"cachalot.4711.0\",command=\"python train.py\",device=\"0\","
          "name=\"NVIDIA H100\",uuid=\"\"} 4294967296\n"),
      std::string::npos)
      << text;
  EXPECT_NE(text.find("# TYPE cachalot_allocations_total counter\n"), std::string::npos);
  EXPECT_NE(text.find(",pool=\"0.0\",tag=\"\"} 4294967296\n"), std::string::npos);
  EXPECT_EQ(text.find("limit_bytes"), std::string::npos) << "there is none";
}

// Each line is one of the format's, whatever the texts are.
TEST(Prometheus, HostileTextsAreEscaped) {
  Sample sample = sample_at(1000, kGiB, kGiB);
  sample.processes[0].command = "a\"b\\c\nd\x1b[31m\xff\xc3\xa9\xed\xa0\x80\xe2\x82";
  std::strcpy(sample.processes[0].devices[0].page.pools[0].tag, "\"} 1\nevil_metric 7");
  sample.gpus = {gpu_of(0, "T\"4")};
  const std::string text = to_prometheus(sample);
  EXPECT_NE(text.find("command=\"a\\\"b\\\\c\\nd?[31m\xef\xbf\xbd\xc3\xa9\xef\xbf\xbd"), std::string::npos) << text;
  const std::regex line(
      R"re((# (HELP|TYPE) cachalot_[a-z_]+ .+|cachalot_[a-z_]+(\{([a-z]+="([^"\\\n]|\\["\\n])*",?)*\})? [0-9.e+-]+))re");
  std::istringstream lines(text);
  for (std::string each; std::getline(lines, each);) EXPECT_TRUE(std::regex_match(each, line)) << each;
}

TEST(Prometheus, TextfileIsReplacedAtOnceAndLeavesNothingBehind) {
  const PageFolder folder;
  const std::string path = folder.path() + "/cachalot.prom";
  write_output(path, "--prometheus-textfile", "old\n");
  write_output(path, "--prometheus-textfile", "new\n");
  EXPECT_EQ(read_whole(path), "new\n");
  EXPECT_EQ(folder.pages().size(), 1u);
  EXPECT_THROW(write_output("/nonexistent/x.prom", "--prometheus-textfile", ""), InvalidArgument);
}

class Client {
 public:
  explicit Client(const PrometheusServer& server) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(server.name().substr(server.name().find(':') + 1))));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.number(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  void send_text(const std::string& text) const {
    EXPECT_EQ(send(socket_.number(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Returns the server's output until it closes.
  std::string answer() const {
    std::string all;
    char bytes[4096];
    for (ssize_t count; (count = recv(socket_.number(), bytes, sizeof(bytes), 0)) > 0;) {
      all.append(bytes, static_cast<std::size_t>(count));
    }
    return all;
  }

 private:
  Descriptor socket_;
};

std::string ask(PrometheusServer& server, const std::string& request) {
  const Client client(server);
  client.send_text(request);
  server.serve();  // takes the connection
  for (int i = 0; i < 3; ++i) {
    std::vector<pollfd> polled;
    server.add_to(polled);
    if (polled.size() == 1) break;  // it is answered
    poll(polled.data() + 1, 1, 100);
    server.serve();
  }
  server.serve(std::chrono::steady_clock::now() + std::chrono::minutes(1));  // ends what is not answered
  return client.answer();
}

TEST(PrometheusServer, AnswersGetAndHead) {
  PrometheusServer server("127.0.0.1", 0);
  server.set_text("cachalot_processes 1\n");
  const std::string got = ask(server, "GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\n\r\n");
  EXPECT_TRUE(got.starts_with(
      "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 21\r\n"))
      << got;
  EXPECT_TRUE(got.ends_with("\r\n\r\ncachalot_processes 1\n")) << got;
  const std::string head = ask(server, "HEAD /metrics HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(head.ends_with("\r\n\r\n")) << head;
  EXPECT_NE(head.find("Content-Length: 21"), std::string::npos);
}

TEST(PrometheusServer, RefusesEverythingElse) {
  PrometheusServer server("127.0.0.1", 0);
  EXPECT_TRUE(ask(server, "GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask(server, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
  EXPECT_TRUE(ask(server, "\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask(server, "GET\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask(server, std::string("\0\xff GET / HTTP/9\r\n\r\n", 19)).starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask(server, "GET /metrics HTTP/1.1\r\nX: " + std::string(10240 - 26, 'x')).starts_with("HTTP/1.1 431"));
  EXPECT_EQ(ask(server, "GET /metr"), "") << "an unfinished request ends after its time";
}

TEST(PrometheusServer, ManyIdleConnectionsDoNotKeepOthersOutForGood) {
  PrometheusServer server("127.0.0.1", 0);
  std::vector<std::unique_ptr<Client>> idle;
  for (std::size_t i = 0; i < PrometheusServer::kMostConnections; ++i) {
    idle.push_back(std::make_unique<Client>(server));
    server.serve();
  }
  std::vector<pollfd> polled;
  server.add_to(polled);
  EXPECT_EQ(polled.size(), PrometheusServer::kMostConnections) << "no further one is taken";
  server.serve(std::chrono::steady_clock::now() + std::chrono::minutes(1));
  EXPECT_TRUE(ask(server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
}

TEST(PrometheusServer, RefusesWhatIsNoAddress) {
  EXPECT_THROW(PrometheusServer("localhost", 0), InvalidArgument);
  EXPECT_THROW(PrometheusServer("192.0.2.1", 0), InvalidArgument);
}

}  // namespace
}  // namespace cachalot::tools::live
