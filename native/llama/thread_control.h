// How many threads the next pass uses: as many as the machine has room for beside other programs.
#pragma once

#include <map>
#include <optional>
#include <vector>

namespace medusa {

// One timed pass of the model over some rows.
struct TimedPass {
    int threads = 1;
    int rows = 1;
    double ms = 0;
    double waiting = 0;  // how many of its threads did not run, on average over the pass
    bool given_up = false;
};

// Threads meet hundreds of times in a pass, so one that another program keeps from running makes all the others wait:
// beside one busy program, two threads on two cores are many times slower than one. What counts is how long passes
// take. Trials compare a few passes at another count with the newest ones at this count, like with like by their rows:
//
// - at once, with fewer threads, if threads wait or a pass took so long that it was given up;
// - with more, if the rest of the machine seems to leave room (if nothing is known about it: now and then);
// - now and then with other counts, since with cores of two speeds all wait for the slow ones.
//
// A count is changed for a gain of `least_gain`. A failed trial is repeated after twice the time, and not before its
// loss is 0.5% of the time since. Knows no clock: time is the sum of the passes.
class ThreadControl {
  public:
    enum class Reason { all, others, slower };

    // most: threads that it may choose. start: the count it begins with.
    ThreadControl(int most, int start);

    // For the next pass.
    int threads() const { return trial_ ? trial_->threads : count_; }
    // Why there are not more.
    Reason reason() const { return count_ == most_ ? Reason::all : reason_; }
    // After this many milliseconds, a pass of several threads, some of which do not run, is not worth waiting for.
    double patience_ms(int rows) const;
    void report(const TimedPass& pass);
    // No trials of its own accord from now on, for comparing times.
    void hold();
    // How many cores other programs leave; the reported passes are not counted among these programs.
    void set_room(double cores);

    static constexpr double least_gain = 0.03;
    static constexpr double nearly_a_core = 0.7;     // enough room for a thread
    static constexpr double too_many_waiting = 0.3;  // threads

  private:
    // How long passes take, by number of rows; for each number, the newest count most.
    class Times {
      public:
        void record(int rows, double ms);
        void clear() { ms_.clear(); }
        // nullopt: no pass had this many rows.
        std::optional<double> of(int rows) const;

      private:
        std::map<int, double> ms_;
    };

    // When the next trial of a kind is due.
    struct Turn {
        double first_wait, longest_wait;
        double wait = first_wait, due = 0;
        double paid = 0;  // when the last loss has become a small share of the time since
        void failed(double now, double lost_ms);
        // As if none had failed: the next one comes after `after` milliseconds, or when the last loss is paid.
        void start(double now, double after);
        void start(double now) { start(now, first_wait); }
    };

    struct Trial {
        int threads;
        Turn* turn;
        int passes = 0, compared = 0;
        double ms = 0, expected = 0;  // of the compared passes
        double lost = 0;              // over all passes
        Times times{};
    };

    void try_count(int threads, Turn& turn);
    void continue_trial(const TimedPass& pass);
    void end_trial(bool better);
    void give_up(const TimedPass& pass);
    void learn(const TimedPass& pass);
    void consider_trial(int rows);
    void move_to(int count, Reason reason);
    int fewer_than_waiting(double waiting) const;
    int more() const;
    int other();

    int most_, count_;
    Reason reason_ = Reason::others;
    double now_ = 0;
    Times times_{};   // at count_
    int passes_ = 0;  // at count_
    double waiting_ = 0;
    std::optional<double> room_;
    bool held_ = false;
    std::optional<Trial> trial_;
    Turn crowded_{100, 8000}, more_{200, 8000}, blind_{2000, 32000}, other_{5000, 160000};
    double settled_ = 0;      // when a raised count has proved itself
    bool one_more_ = false;   // a trial of several more failed: one more is next
    bool half_next_ = false;  // for other()
};

}  // namespace medusa
