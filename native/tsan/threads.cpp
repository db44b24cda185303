// Answers of two sessions of one model at once, each cancelled from a third thread at any moment: for ThreadSanitizer.
//
//   threads MODEL ROUNDS [HEADS]    rounds: pairs of an answer and its cancellation
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>

#include "compose/model_session.h"
#include "grammar/gbnf.h"
#include "llama/pass_threads.h"

namespace {

using namespace medusa;

// One answer at a time, of any kind, until it is done or cancelled.
class Worker {
  public:
    Worker(std::shared_ptr<LlamaModel> model, std::shared_ptr<Heads> heads, std::shared_ptr<const Grammar> grammar,
           int number)
        : model_(model), grammar_(std::move(grammar)), random_(number) {
        ModelSessionParams params;
        params.context_size = 1024;
        params.threads = {3, number == 1};
        params.lookup = params.recycling = !heads;
        if (heads) params.tree = Tree({{0}, {1}, {0, 0}});
        session_ = open_session(std::move(model), std::move(heads), params).session;
    }

    void run(long rounds) {
        for (long round = 0; round < rounds; ++round) {
            cancelled = false;
            answer();
            done.fetch_add(1);
        }
        finished = true;
    }

    std::atomic<bool> cancelled = false, finished = false;
    std::atomic<long> done = 0, cut = 0;  // answers; those that were cancelled

  private:
    void answer() {
        const bool is_long = random_() % 512 == 0;  // then attention's work is divided by cells
        std::vector<Token> prompt(1 + random_() % (is_long ? 900 : 24));
        for (Token& token : prompt) token = static_cast<Token>(random_() % model_->vocab_size());
        GenerateParams params;
        params.max_tokens = 8;
        params.watchdog = random_() % 2;
        params.sampling.temperature = random_() % 2 ? 0.8f : 0.0f;
        if (!params.sampling.is_greedy()) params.accept.kind = AcceptKind::exact;
        if (random_() % 4 == 0) params.grammar = grammar_;
        params.ignore_eos = !params.grammar;
        int steps = 0;
        bool stopped = false;
        const auto poll = [&] { return stopped = cancelled.load() && (!is_long || steps > 2); };
        try {
            session_->generate(prompt, params, [&](const std::vector<Piece>&) { ++steps; }, poll);
        } catch (const Error& error) {
            std::fprintf(stderr, "%s\n", error.what());
            std::abort();
        }
        cut.fetch_add(stopped);
    }

    std::shared_ptr<LlamaModel> model_;
    std::shared_ptr<const Grammar> grammar_;
    std::mt19937 random_;
    std::unique_ptr<Session> session_;
};

}  // namespace

int main(int count, char** arguments) {
    if (count < 3) return 2;
    const long rounds = std::atol(arguments[2]);
    const auto model = std::make_shared<LlamaModel>(arguments[1], 0, true, LoadProgress());
    const auto heads = count > 3 ? std::make_shared<Heads>(model, arguments[3]) : nullptr;
    const auto grammar = std::make_shared<const Grammar>(parse_gbnf("root ::= [^\\x00]*"));
    Worker first(model, heads, grammar, 0), second(model, heads, grammar, 1);
    std::thread one([&] { first.run(rounds); }), two([&] { second.run(rounds); });
    std::mt19937 random(2);
    while (!first.finished || !second.finished) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 8000));
        advise_threads(2);
        (random() % 2 ? first : second).cancelled = true;
    }
    one.join();
    two.join();
    std::printf("%ld answers, %ld of them cancelled\n", first.done + second.done, first.cut + second.cut);
}
