// Writes a pickle of protocol 4, which every Python since 3.4 and PyTorch's memory viewer read, of plain data: dicts, lists,
// pairs, whole numbers and text. A text is written once, and named where it comes again.
//
//   pickle.begin_dict();
//   pickle.key("sizes");
//   pickle.begin_list();
//   pickle.add(std::uint64_t{512});
//   pickle.end_list();
//   pickle.end_dict();
//   pickle.finish();
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/output_file.h"
#include "tools/pickle_opcodes.h"

namespace cachalot::tools {

using PickledId = std::uint32_t;  // names a value that was written

class PickleWriter {
 public:
  explicit PickleWriter(OutputFile& out);

  void begin_dict();
  void key(std::string_view name);  // then its value
  void end_dict() { end(Opcode::setitems); }
  void begin_list();
  void end_list() { end(Opcode::appends); }

  void add(std::uint64_t number);
  void add(std::int64_t number);
  void add(bool value);
  void add(std::string_view text);
  void add_pair(std::uint64_t first, std::uint64_t second);
  // The last value, a finished one, can be named: add_again writes the name in its place.
  PickledId remember();
  void add_again(PickledId id);

  // Ends the pickle; the file is not finished.
  void finish();

 private:
  struct Open {
    int parts = 0;           // since the last batch
    bool has_batch = false;  // a mark has been written for it
    bool is_list = false;
  };

  void value();  // comes before each one
  void end(Opcode opcode);
  void opcode(Opcode code);
  void little_endian(std::uint64_t number, int bytes);
  void add_text(std::string_view text);

  OutputFile& out_;
  std::vector<Open> open_;
  PickledId remembered_ = 0;
  std::map<std::string, PickledId, std::less<>> texts_;
};

}  // namespace cachalot::tools
