// Turns a text into a file of token numbers for 02_language_model.
//
//   bible -f gen1:1-rev22:21 | ./02_tokenize --text - --references --output kjv.npy
//   ./02_tokenize --text book.txt --vocabulary sentencepiece --vocab_size 1000 --output book.npy
//
// Writes two arrays in NumPy's format:
//   kjv.npy         the tokens one after the other: uint8, or uint16 for a vocabulary of more than 256
//   kjv.bytes.npy   how many bytes of text each token number stands for, int64, [vocabulary size]
// and, with sentencepiece, the vocabulary itself as kjv.model.
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

#include <CLI/CLI.hpp>

#include "accelerate/core/error.h"
#include "accelerate/core/file_system.h"
#include "accelerate/core/strings.h"

#ifdef ACCELERATE_WITH_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>
#endif

using accelerate::concat;
using accelerate::DataError;

struct Options {
  std::string text;
  std::string vocabulary = "bytes";
  int64_t vocab_size = 1000;
  std::string output = "tokens.npy";
  bool references = false;
};

struct Tokens {
  std::vector<uint16_t> numbers;
  std::vector<int64_t> bytes;  // of text, for each number of the vocabulary
};

std::string read_all(const std::string& path) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file) throw DataError({.what = "opening " + path, .got = accelerate::errno_text(errno)});
  }
  std::ostringstream out;
  out << (path == "-" ? std::cin : file).rdbuf();
  return out.str();
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

// "Ge1:1 In the beginning" -> "In the beginning"
std::string without_reference(const std::string& line, size_t number) {
  const size_t space = line.find(' ');
  const size_t colon = line.find(':');
  const bool fits = space != std::string::npos && colon != std::string::npos && 0 < colon &&
                    colon + 1 < space && std::isdigit(static_cast<unsigned char>(line[space - 1]));
  if (!fits) {
    throw DataError({.what = concat("line ", number),
                     .expected = "a reference such as 'Ge1:1' before the text",
                     .got = "'" + line.substr(0, 30) + "'",
                     .hint = "Leave --references out for a text without them."});
  }
  return line.substr(space + 1);
}

std::vector<std::string> read_lines(const Options& options) {
  std::vector<std::string> lines = lines_of(read_all(options.text));
  if (options.references) {
    for (size_t i = 0; i < lines.size(); ++i) lines[i] = without_reference(lines[i], i + 1);
  }
  if (lines.empty()) throw DataError({.what = options.text + " holds no text"});
  return lines;
}

// Every byte is a token, the line's end included.
Tokens bytes_of(const std::vector<std::string>& lines) {
  Tokens out{.numbers = {}, .bytes = std::vector<int64_t>(256, 1)};
  for (const std::string& line : lines) {
    for (const char byte : line) out.numbers.push_back(static_cast<unsigned char>(byte));
    out.numbers.push_back('\n');
  }
  return out;
}

#ifdef ACCELERATE_WITH_SENTENCEPIECE

void require_ok(const sentencepiece::util::Status& status, const std::string& what) {
  if (!status.ok()) throw DataError({.what = what, .got = status.ToString()});
}

// Hands the lines to sentencepiece's trainer.
class Lines final : public sentencepiece::SentenceIterator {
 public:
  explicit Lines(const std::vector<std::string>& lines) : at_(lines.begin()), end_(lines.end()) {}
  bool done() const override { return at_ == end_; }
  void Next() override { ++at_; }
  const std::string& value() const override { return *at_; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  std::vector<std::string>::const_iterator at_;
  std::vector<std::string>::const_iterator end_;
};

// Trains byte-pair encoding that loses nothing: no normalization, and bytes where no piece fits.
std::string train_model(const std::vector<std::string>& lines, int64_t vocab_size) {
  const std::unordered_map<std::string, std::string> options = {{"model_type", "bpe"},
                                                                {"vocab_size", std::to_string(vocab_size)},
                                                                {"byte_fallback", "true"},
                                                                {"normalization_rule_name", "identity"},
                                                                {"remove_extra_whitespaces", "false"},
                                                                {"add_dummy_prefix", "false"},
                                                                {"minloglevel", "1"}};
  Lines sentences(lines);
  std::string model;
  require_ok(sentencepiece::SentencePieceTrainer::Train(options, &sentences, &model),
             concat("training a vocabulary of ", vocab_size, " pieces"));
  return model;
}

// Bytes of text that a piece stands for: sentencepiece writes a space as U+2581, which takes three bytes.
int64_t text_bytes(const sentencepiece::SentencePieceProcessor& processor, int id) {
  if (id == processor.eos_id()) return 1;  // ours stands for the line's end
  if (processor.IsControl(id) || processor.IsUnknown(id)) return 0;
  if (processor.IsByte(id)) return 1;
  const std::string& piece = processor.IdToPiece(id);
  auto bytes = static_cast<int64_t>(piece.size());
  for (size_t at = 0; (at = piece.find("\xe2\x96\x81", at)) != std::string::npos; at += 3) bytes -= 2;
  return bytes;
}

Tokens pieces_of(const std::vector<std::string>& lines, const std::string& model) {
  sentencepiece::SentencePieceProcessor processor;
  require_ok(processor.LoadFromSerializedProto(model), "loading the vocabulary");
  Tokens out;
  for (int id = 0; id < processor.GetPieceSize(); ++id) out.bytes.push_back(text_bytes(processor, id));
  std::vector<int> ids;
  for (const std::string& line : lines) {
    require_ok(processor.Encode(line, &ids), "encoding a line");
    for (const int id : ids) out.numbers.push_back(static_cast<uint16_t>(id));
    out.numbers.push_back(static_cast<uint16_t>(processor.eos_id()));
  }
  return out;
}

Tokens train_pieces(const std::vector<std::string>& lines, int64_t vocab_size,
                    const std::string& model_path) {
  const std::string model = train_model(lines, vocab_size);
  accelerate::write_file_atomically(accelerate::system_files(), model_path, model);
  return pieces_of(lines, model);
}

#else

Tokens train_pieces(const std::vector<std::string>&, int64_t, const std::string&) {
  throw accelerate::ConfigError(
      {.what = "--vocabulary sentencepiece",
       .got = "a program that was built without sentencepiece",
       .hint =
           "apt-get install libsentencepiece-dev, configure and build again; or use --vocabulary bytes."});
}

#endif

// A one-dimensional array in NumPy's format, version 1.0: a header that fills up 64 bytes, then the numbers.
template <class T>
void write_npy(const std::string& path, const std::string& dtype, const std::vector<T>& values) {
  std::string header =
      concat("{'descr': '", dtype, "', 'fortran_order': False, 'shape': (", values.size(), ",), }");
  constexpr size_t kPreamble = 10;
  header.append(63 - (kPreamble + header.size()) % 64, ' ');
  header += '\n';
  std::string file("\x93NUMPY\x01\x00", 8);
  file += static_cast<char>(header.size() % 256);
  file += static_cast<char>(header.size() / 256);
  file += header;
  file.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  accelerate::write_file_atomically(accelerate::system_files(), path, file);
}

std::string with_extension(const std::string& path, const std::string& extension) {
  const bool npy = path.size() > 4 && path.ends_with(".npy");
  return (npy ? path.substr(0, path.size() - 4) : path) + extension;
}

void check_nothing_lost(const Tokens& tokens, const std::vector<std::string>& lines) {
  int64_t want = 0;
  for (const std::string& line : lines) want += static_cast<int64_t>(line.size()) + 1;
  int64_t got = 0;
  for (const uint16_t number : tokens.numbers) got += tokens.bytes[number];
  if (got == want) return;
  throw DataError({.what = "the tokens do not stand for the whole text",
                   .expected = concat(want, " bytes"),
                   .got = concat(got, " bytes")});
}

// Bits a byte that guessing each token by its frequency alone would take; a model must do better.
double unigram_bits_per_byte(const Tokens& tokens) {
  std::vector<double> counts(tokens.bytes.size());
  double bytes = 0;
  for (const uint16_t number : tokens.numbers) {
    ++counts[number];
    bytes += static_cast<double>(tokens.bytes[number]);
  }
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(tokens.numbers.size()));
  }
  return bits / bytes;
}

void tokenize(const Options& options) {
  const std::vector<std::string> lines = read_lines(options);
  const std::string bytes_path = with_extension(options.output, ".bytes.npy");
  const Tokens tokens =
      options.vocabulary == "bytes"
          ? bytes_of(lines)
          : train_pieces(lines, options.vocab_size, with_extension(options.output, ".model"));
  check_nothing_lost(tokens, lines);
  if (tokens.bytes.size() <= 256) {
    write_npy(options.output, "|u1", std::vector<uint8_t>(tokens.numbers.begin(), tokens.numbers.end()));
  } else {
    write_npy(options.output, "<u2", tokens.numbers);
  }
  write_npy(bytes_path, "<i8", tokens.bytes);
  std::cout << lines.size() << " lines, " << tokens.numbers.size() << " tokens of " << tokens.bytes.size()
            << " kinds, unigram entropy " << unigram_bits_per_byte(tokens)
            << " bits a byte: " << options.output << ", " << bytes_path << std::endl;
}

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Turns a text into a file of token numbers for 02_language_model");
  app.add_option("--text", options.text, "the text, or - for standard input")->required();
  app.add_option("--vocabulary", options.vocabulary, "what a token is: a byte, or a piece of words")
      ->check(CLI::IsMember({"bytes", "sentencepiece"}))
      ->capture_default_str();
  app.add_option("--vocab_size", options.vocab_size, "pieces that sentencepiece learns from the text")
      ->check(CLI::Range(int64_t{300}, int64_t{65536}))
      ->capture_default_str();
  app.add_option("--output", options.output, "the file of tokens")->capture_default_str();
  app.add_flag("--references", options.references,
               "lines begin with a reference such as 'Ge1:1', which is no part of the text");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    tokenize(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << accelerate::error_message(error) << std::endl;
    return accelerate::exit_code(error);
  }
}
