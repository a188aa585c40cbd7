#pragma once

#include <string_view>

#include "accelerate/environment/env_vars.h"

namespace accelerate::cli {

/// One press of a key.
struct Key {
  enum class Kind {
    kText,  ///< a printable character, in `text`
    kUp,
    kDown,
    kHome,
    kEnd,
    kEnter,
    kBackspace,
    kClearLine,   ///< Ctrl-U
    kEscape,      ///< Esc alone
    kInterrupt,   ///< Ctrl-C
    kEndOfInput,  ///< Ctrl-D, or the terminal is gone
    kOther,
  };
  Kind kind = Kind::kOther;
  char text = 0;
};

/// Standard input and output as a terminal that hands over every key at once and echoes nothing, for as long
/// as this object lives. The terminal gets its former mode back at the end, also when a signal ends the
/// program. At most one at a time: a signal handler has to know it.
class Terminal {
 public:
  /// True when standard input and output are a terminal that can move its cursor (TERM is set and not
  /// "dumb").
  static bool usable(const EnvVars& variables);

  /// @throws ConfigError when the terminal can't be set up.
  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// Waits for the next key.
  Key read_key();
  void write(std::string_view text);
  /// The size now, in characters; 80 x 24 where the terminal does not say.
  int columns() const;
  int rows() const;

 private:
  int read_byte(int timeout_ms);
  Key read_sequence();
};

}  // namespace accelerate::cli
