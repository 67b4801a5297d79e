// SPDX-License-Identifier: Apache-2.0 OR MIT

// Command go-ycsb runs go-ycsb's workloads A to F on a RocksDB database whose reads are pushed down:
// the driver, generators and measurements are third-party. docs/rocksdb.md says how to build it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/magiconair/properties"
	"github.com/pingcap/go-ycsb/pkg/client"
	"github.com/pingcap/go-ycsb/pkg/measurement"
	"github.com/pingcap/go-ycsb/pkg/prop"
	"github.com/pingcap/go-ycsb/pkg/util"
	_ "github.com/pingcap/go-ycsb/pkg/workload" // registers "core"
	"github.com/pingcap/go-ycsb/pkg/ycsb"
)

const (
	fields     = 10
	fieldBytes = 10
	// The size of a record in a table: "user" and 19 digits; for each field a number, a length, and
	// two bytes that encode their types.
	recordBytes = 23 + fields*(fieldBytes+4)
	recordsMin  = 1000
	threadsMax  = 1024
)

// The properties of YCSB's workloads, by YCSB's names.
var workloads = map[string]map[string]string{
	"a": {prop.ReadProportion: "0.5", prop.UpdateProportion: "0.5"},
	"b": {prop.ReadProportion: "0.95", prop.UpdateProportion: "0.05"},
	"c": {prop.ReadProportion: "1", prop.UpdateProportion: "0"},
	"d": {prop.ReadProportion: "0.95", prop.UpdateProportion: "0", prop.InsertProportion: "0.05",
		prop.RequestDistribution: "latest"},
	"e": {prop.ReadProportion: "0", prop.UpdateProportion: "0", prop.ScanProportion: "0.95",
		prop.InsertProportion: "0.05", prop.MaxScanLength: "100"},
	"f": {prop.ReadProportion: "0.5", prop.UpdateProportion: "0", prop.ReadModifyWriteProportion: "0.5"},
}

const usage = `Runs go-ycsb's workloads on RocksDB with reads pushed down.

usage: go-ycsb --database FOLDER --load [OPTIONS]
       go-ycsb --database FOLDER --run [OPTIONS]

--load makes a database there; --run uses one, with the same --records; both may be given. Records have
10 fields of 10 bytes; those that Gets read are checked. Exit status 1: an operation failed.

  --url URL         the target: nvme-tcp://HOST:PORT/NQN?ns=N [default: none, chains run here]
  --device DEVICE   its namespace on this machine: block device or image
  --mode MODE       plain, chains or blocks [default: chains]
  --workload W      a to f [default: a]
  --records N       records that are or were loaded, at least 1000 [default: 200000]
  --operations N    operations of --run [default: 20000]
  --threads N       clients, at most 1024 [default: 8]
`

// commandLine has the user's options.
type commandLine struct {
	settings
	workload            string
	records, operations int64
	load, run           bool
}

func parse(arguments []string) (commandLine, error) {
	var c commandLine
	flags := flag.NewFlagSet("go-ycsb", flag.ContinueOnError)
	// main prints errors and help itself.
	flags.SetOutput(io.Discard)
	flags.StringVar(&c.path, "database", "", "")
	flags.StringVar(&c.url, "url", "", "")
	flags.StringVar(&c.device, "device", "", "")
	flags.StringVar(&c.mode, "mode", "chains", "")
	flags.StringVar(&c.workload, "workload", "a", "")
	flags.Int64Var(&c.records, "records", 200000, "")
	flags.Int64Var(&c.operations, "operations", 20000, "")
	flags.IntVar(&c.threads, "threads", 8, "")
	flags.BoolVar(&c.load, "load", false, "")
	flags.BoolVar(&c.run, "run", false, "")
	if err := flags.Parse(arguments); err != nil {
		return c, err
	}
	if flags.NArg() > 0 {
		return c, fmt.Errorf("unknown argument %s", flags.Arg(0))
	}
	c.bytes = c.records * recordBytes
	c.create = c.load
	return c, c.check()
}

func (c *commandLine) check() error {
	_, hasMode := modes[c.mode]
	_, hasWorkload := workloads[c.workload]
	switch {
	case c.path == "":
		return errors.New("--database is missing: the folder of the database")
	case !c.load && !c.run:
		return errors.New("nothing to do: give --load or --run")
	case (c.url == "") != (c.device == ""):
		return errors.New("--url and --device must be given together")
	case !hasMode:
		return fmt.Errorf("--mode %s: plain, chains or blocks", c.mode)
	case !hasWorkload:
		return fmt.Errorf("--workload %s: a, b, c, d, e or f", c.workload)
	case c.records < recordsMin:
		return fmt.Errorf("--records %d: at least %d", c.records, recordsMin)
	case c.threads < 1 || c.threads > threadsMax:
		return fmt.Errorf("--threads %d: 1 to %d", c.threads, threadsMax)
	case c.operations < int64(c.threads):
		return fmt.Errorf("--operations %d: at least one for each of the %d threads", c.operations, c.threads)
	}
	return nil
}

// properties returns those of a phase: loading, or the workload.
func (c *commandLine) properties(loading bool) *properties.Properties {
	p := properties.NewProperties()
	records := c.records
	if loading {
		// go-ycsb's zipfian requests include this record number.
		records++
	}
	values := map[string]string{
		prop.DoTransactions:      strconv.FormatBool(!loading),
		prop.RecordCount:         strconv.FormatInt(records, 10),
		prop.OperationCount:      strconv.FormatInt(c.operations, 10),
		prop.ThreadCount:         strconv.Itoa(c.threads),
		prop.FieldCount:          strconv.Itoa(fields),
		prop.FieldLength:         strconv.Itoa(fieldBytes),
		prop.DataIntegrity:       "true",
		prop.RequestDistribution: "zipfian",
	}
	for name, value := range workloads[c.workload] {
		values[name] = value
	}
	for name, value := range values {
		p.MustSet(name, value)
	}
	return p
}

// phase loads or runs, and prints what go-ycsb measured.
func (c *commandLine) phase(db *database, loading bool) error {
	p := c.properties(loading)
	workload, err := ycsb.GetWorkloadCreator("core").Create(p)
	if err != nil {
		return fmt.Errorf("making workload %s: %w", c.workload, err)
	}
	measurement.InitMeasure(p)
	client.NewClient(p, workload, client.DbWrapper{DB: db}).Run(context.Background())
	measurement.Output()
	if err := workload.Close(); err != nil {
		return fmt.Errorf("ending workload %s: %w", c.workload, err)
	}
	if err := db.failed(); err != nil {
		return err
	}
	return db.settle()
}

// checkDatabase checks the preconditions of --load and --run alone.
func (c *commandLine) checkDatabase() error {
	// Every database of RocksDB has this file.
	_, err := os.Stat(filepath.Join(c.path, "CURRENT"))
	switch {
	case c.load && err == nil:
		return fmt.Errorf("there is a database in %s: remove it, or leave out --load", c.path)
	case !c.load && errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("there is no database in %s: --load makes one", c.path)
	}
	return nil
}

func (c *commandLine) work() (err error) {
	if err := c.checkDatabase(); err != nil {
		return err
	}
	db, err := open(c.settings, util.NewRowCodec(c.properties(c.load)))
	if err != nil {
		return err
	}
	defer func() {
		if closing := db.Close(); err == nil && closing != nil {
			err = fmt.Errorf("closing the database in %s: %w", c.path, closing)
		}
	}()
	// Otherwise the first reads would meet a set of tables that is not known yet.
	if err := db.settle(); err != nil {
		return err
	}
	if c.load {
		if err := c.phase(db, true); err != nil {
			return err
		}
	}
	if c.run {
		fmt.Printf("Workload %s in mode %s, %d threads\n", c.workload, c.mode, c.threads)
		err = c.phase(db, false)
		db.printStats(os.Stdout)
	}
	return err
}

func main() {
	c, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "go-ycsb: %v; see --help\n", err)
		os.Exit(2)
	}
	if err := c.work(); err != nil {
		fmt.Fprintf(os.Stderr, "go-ycsb: %v\n", err)
		os.Exit(1)
	}
}
