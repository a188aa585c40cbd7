#include "accelerate/core/error.h"

#include <cstring>

#include "accelerate/core/strings.h"

namespace accelerate {
namespace {

std::string compose(const ErrorText& text) {
  std::string out;
  if (text.rank) out += concat("rank ", *text.rank, ": ");
  out += text.what;
  if (!text.expected.empty()) out += concat(": expected ", text.expected);
  if (!text.got.empty()) out += concat(text.expected.empty() ? ": got " : ", got ", text.got);
  if (!text.hint.empty()) {
    const char last = out.empty() ? '.' : out.back();
    out += last == '.' || last == '\n' ? " " : ". ";
    out += text.hint;
  }
  return out;
}

}  // namespace

Error::Error(ErrorText text, ExitCode code)
    : std::runtime_error(compose(text)),
      text_(std::move(text)),
      code_(text_.echo ? ExitCode::kCommError : code) {}

std::string error_message(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find("\nException raised from "));
}

int exit_code(const std::exception& error) {
  const auto* own = dynamic_cast<const Error*>(&error);
  return own != nullptr ? own->exit_code() : static_cast<int>(ExitCode::kFailure);
}

std::string errno_text(int error_number) {
  return concat(std::strerror(error_number), " (", error_number, ")");
}

}  // namespace accelerate
