// Mocha's part: a line for what each test came to.
const { appendFileSync } = require('fs');

module.exports = class {
  constructor(runner) {
    const tell = (test, outcome, why = '') => {
      const name = test.fullTitle().replace(/[\t\n]/g, ' ');
      const line = [name, outcome, String(why).replace(/[\t\n]/g, ' ')].join('\t');
      appendFileSync(process.env.SUITES_RESULTS, `${line}\n`);
    };
    runner.on('pass', (test) => tell(test, 'passed'));
    runner.on('fail', (test, error) => tell(test, 'failed', error && error.message));
    runner.on('pending', (test) => tell(test, 'skipped'));
  }
};
