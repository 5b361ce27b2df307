#include "tools/pickle_reader.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "cachalot/errors.h"
#include "tools/pickle_input.h"
#include "tools/pickle_program.h"
#include "tools/pickle_stack.h"

namespace cachalot::tools {
namespace {

// Keeps all of the pickle.
class DocumentMachine : public PickleStack {
 public:
  static constexpr std::size_t kLongestLine = std::numeric_limits<std::size_t>::max();

  DocumentMachine(PickleInput& input, PlainDocument& document)
      : PickleStack(input, document), input_(input), document_(document) {}

  void push_text(std::uint64_t bytes) { push(document_.add_text(input_.bytes(bytes))); }
  void push_text(std::string text) { push(document_.add_text(std::move(text))); }
  void push_bytes(std::uint64_t bytes) { push(document_.add_bytes(input_.bytes(bytes))); }
  void push_list(Value::Kind kind) { push(document_.add_list({}, kind)); }
  void push_dict() { push(document_.add_dict()); }
  void stop() { document_.set_root(result()); }

 private:
  PickleInput& input_;
  PlainDocument& document_;
};

}  // namespace

std::unique_ptr<PlainDocument> read_pickle(InputFile file) {
  auto document = std::make_unique<PlainDocument>(file.memory_limit());
  PickleInput input(std::move(file), document->budget());
  DocumentMachine machine(input, *document);
  try {
    PickleProgram(input, machine).run();
  } catch (const BrokenPickle& broken) {
    throw InvalidArgument(fmt::format("{}: {}", input.path(), broken.what()));
  } catch (const InvalidArgument& error) {  // the document's limit
    throw InvalidArgument(fmt::format("{}: byte {}: {}", input.path(), input.opcode_at(), error.what()));
  }
  return document;
}

}  // namespace cachalot::tools
